"""Every format of tool calls as a grammar: what the format writes is allowed, as plain text and as control tokens, and
arguments that the function's schema does not allow are not; what is allowed is read back as the same call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from sapwood.constrained.compiler import compile_constraint
from sapwood.constrained.engines.llguidance import LLGuidanceTemplate
from sapwood.constrained.matching.checks import Checker
from sapwood.constrained.matching.completion import ConstrainedCompletion
from sapwood.constrained.spec import Constraint, ConstraintError
from sapwood.constrained.vocabulary import Vocabulary, vocabulary_of
from sapwood.managers.tokenizer.tool_calling import ModelTools, model_tools
from sapwood.runtime.text.chat.tools.call_parser import ToolCallParser
from sapwood.runtime.text.chat.tools.channels import ChannelParser
from sapwood.runtime.text.chat.tools.custom_input import input_schema
from sapwood.runtime.text.chat.tools.known_formats import BY_NAME, GPT_OSS, IN_ORDER
from sapwood.runtime.text.chat.tools.tool_constraint import tool_calls_constraint
from sapwood.runtime.text.chat.tools.tool_format import ToolFormat
from sapwood.runtime.text.tokenizers.base import Tokenizer
from sapwood.runtime.text.tokenizers.gguf_tokenizer import tokenizer_from_metadata
from sapwood.runtime.text.tokenizers.token_bytes import BYTE_OF_CHAR

MARK = re.compile(r"<[^<>\s\ue000-\ue003]{2,40}>|\[[A-Z_]+\]")
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "count": {"type": "integer", "minimum": 3},
        "unit": {"enum": ["C", "F"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "flag": {"type": "boolean"},
        "deep": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
FUNCTIONS = {tool["function"]["name"]: tool["function"].get("parameters") for tool in TOOLS}
GOOD = {"city": "São Paulo, 5 km", "count": 7, "unit": "F", "note": None, "flag": True, "deep": {"a": ["x", "y z"]}}
PLAIN = [each for each in IN_ORDER if not each.channels]


@dataclass(frozen=True)
class Model:
    """A model with the bytes as tokens and these control tokens."""

    tokenizer: Tokenizer
    tools: ModelTools
    vocabulary: Vocabulary

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, allow_control=True)

    def shown(self, ids: list[int]) -> str:
        """The completion's text as the parser gets it."""
        made, data = "", b""
        for each in ids:
            if each in self.tools.stand_ins:
                made, data = made + data.decode() + self.tools.stand_ins[each], b""
            elif each not in self.tokenizer.control_ids:
                data += self.tokenizer.token_bytes(each)
        return made + data.decode("utf-8", "replace")


def model(style: ToolFormat, control: Collection[str], ends: Collection[str] = ()) -> Model:
    texts = sorted({*control, "<bos>", "<eos>"})
    tokens = [*BYTE_OF_CHAR, *texts]
    tokenizer = tokenizer_from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.token_type": [1] * len(BYTE_OF_CHAR) + [3] * len(texts),
            "tokenizer.ggml.bos_token_id": tokens.index("<bos>"),
            "tokenizer.ggml.eos_token_id": tokens.index("<eos>"),
        }
    )
    tokenizer.eos_ids = tokenizer.eos_ids | {tokens.index(each) for each in ends}
    tools = model_tools(style, tokenizer)
    assert tools is not None
    return Model(tokenizer, tools, vocabulary_of(tokenizer))


@cache
def models(style: ToolFormat) -> list[Model]:
    """Without any of the format's marks as a token, and with all that look like one."""
    marks = {mark for text in style._texts() for mark in MARK.findall(text)}
    return [model(style, ()), model(style, marks)]


def matcher(own: Model, tools: list[Any] = TOOLS, strict: bool = True, **said: Any) -> Callable[[str], str]:
    """Feeds a completion to the grammar: "" where it is allowed whole, else from where on it is not."""
    options = {"required": False, "parallel": True, **said}
    body = tool_calls_constraint(
        own.tools.style, tools, options.pop("allowed", None), token_ids=own.tools.token_ids, strict=strict, **options
    )
    constraint = Constraint("tool_calls", json.dumps(body), strict)
    compiled = compile_constraint(constraint, own.vocabulary)
    template = LLGuidanceTemplate(compiled.payload, own.vocabulary)

    def refused(text: str) -> str:
        checks = Checker(compiled.checks) if compiled.checks else None
        completion = ConstrainedCompletion(template.start(), checks, None)
        ids = own.ids(text)
        for i, each in enumerate(ids):
            try:
                edit = completion.advance(each)
            except ValueError:
                return own.shown(ids[i:])
            if edit.failure or edit.rewind or edit.token_ids != [each]:
                return own.shown(ids[i:]) or "?"
        return "" if template_may_end(completion, own) else "the end"

    return refused


def template_may_end(completion: ConstrainedCompletion, own: Model) -> bool:
    try:
        return completion.advance(own.vocabulary.eos_ids[0]).complete
    except ValueError:
        return False


def read(own: Model, text: str) -> tuple[str, list[tuple[str, Any]]]:
    """The text and the calls of a completion, read token by token."""
    make = ChannelParser if own.tools.style.channels else ToolCallParser
    parser = make(own.tools.style, FUNCTIONS)
    calls: dict[int, list[str]] = {}
    said = ""
    shown = own.shown(own.ids(text))
    for piece in [*shown, None]:
        parsed = parser.flush() if piece is None else parser.push(piece)
        said += parsed.text
        for each in parsed.calls:
            known = calls.setdefault(each.index, [each.name, ""])
            known[1] += each.arguments
    return said, [(name, json.loads(arguments)) for name, arguments in calls.values()]


def written(style: ToolFormat, *calls: tuple[str, Any]) -> str:
    return style.written([(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls])


@pytest.mark.parametrize("style", PLAIN, ids=lambda each: each.name)
def test_what_a_format_writes_is_allowed_and_read_back(style: ToolFormat) -> None:
    for own in models(style):
        allowed = matcher(own)
        good, none = ("weather", GOOD), ("now", {})
        assert allowed("Just text, [x] {1}.") == ""
        for calls in ([good], [none], [good, none, good]):
            for before in ("", "Well. "):
                text = before + written(style, *calls)
                assert allowed(text) == "", text
                assert read(own, text) == (before.strip(), list(calls))


@pytest.mark.parametrize("style", PLAIN, ids=lambda each: each.name)
def test_arguments_obey_the_schema(style: ToolFormat) -> None:
    bad = [{"city": "x", "count": 2}, {"count": 7}, {"city": "x", "unit": "K"}, {"city": "x", "other": 1}]
    bad += [{"city": "x", "deep": {"a": [1]}}, {"city": "x", "flag": "maybe"}]
    for own in models(style):
        for required in (False, True):
            allowed = matcher(own, required=required)
            for arguments in bad:
                assert allowed(written(style, ("weather", arguments))) != "", arguments
            assert allowed(written(style, ("nothing", {}))) != ""
            assert allowed(written(style, ("weather", {"city": "x", "count": 3}))) == ""


@pytest.mark.parametrize("style", PLAIN, ids=lambda each: each.name)
def test_how_many_calls_and_whether_text_is_allowed(style: ToolFormat) -> None:
    own = models(style)[1]
    one, two = written(style, ("now", {})), written(style, ("now", {}), ("now", {}))
    once = matcher(own, parallel=False)
    assert once(one) == once("Hm. " + one) == ""
    assert once(two) != ""
    must = matcher(own, required=True)
    assert must(one) == must(two) == ""
    assert must("No.") == "No."
    named = matcher(own, required=True, parallel=False, allowed=["weather"])
    assert named(one) != ""
    assert named(written(style, ("weather", {"city": "Rome"}))) == ""


@pytest.mark.parametrize("style", PLAIN, ids=lambda each: each.name)
def test_the_answer_is_what_it_must_match_or_calls(style: ToolFormat) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7.5}}, "required": ["n"]}
    for own in models(style):
        allowed = matcher(own, answer={"kind": "json_schema", "body": json.dumps(schema)})
        assert allowed('{"n":15}') == ""
        assert allowed('{"n":16}') != ""
        call = written(style, ("weather", GOOD))
        assert allowed(call) == ""
        assert allowed("Well. " + call) != ""
        assert allowed("Well.") == "Well."
        assert matcher(own, answer={"kind": "choice", "body": '["yes", "no"]'})("no") == ""
        assert matcher(own, answer={"kind": "regex", "body": "a+"})("aa") == ""
        assert matcher(own, answer={"kind": "ebnf", "body": 'root ::= "x" root | "y"'})("xxy") == ""


LARK = """
start: "x\\"" WORD "\\n" (LINE "\\n")* end
WORD: /[a-z"\\n]{2}/
LINE: /[^\\n]+/ // a line
end: "*** End {Patch}"
"""


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "lfm2", "llama3", "mistral"])
def test_the_input_of_a_custom_tool_matches_its_lark_grammar(name: str) -> None:
    """Also where it is written within a JSON string, whose escapes are not the grammar's."""
    style = BY_NAME[name]
    tool = {"type": "function", "function": {"name": "p", "parameters": input_schema("input", "lark", LARK)}}
    for own in models(style):
        allowed = matcher(own, [tool])
        for text in ('x"ab\n*** End {Patch}', 'x""\n\nq "\\ é\n*** End {Patch\n*** End {Patch}'):
            assert allowed(written(style, ("p", {"input": text}))) == ""
        for text in ('x"a*\n*** End {Patch}', 'x"ab\n\n*** End {Patch}', 'x"ab\n', "y"):
            assert allowed(written(style, ("p", {"input": text}))) != ""


@pytest.mark.parametrize(
    "definition",
    [
        "start: <|im_end|>",
        "start: <[5]>",
        "start: %json {}",
        '%import common.X\nstart: "a"',
        'start: "a" }\nother: "c"',
        "start: @other",
        "start: missing",
        'rule: "no start"',
        "start: /(?=a)b/",
    ],
)
def test_a_lark_grammar_that_is_wrong_or_reaches_out_of_itself_is_refused(definition: str) -> None:
    tool = {"type": "function", "function": {"name": "p", "parameters": input_schema("input", "lark", definition)}}
    for name in ("hermes", "qwen3-coder"):
        with pytest.raises(ConstraintError):
            matcher(models(BY_NAME[name])[0], [tool])


CHANNEL_MARKS = ["<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"]


def test_completions_in_channels() -> None:
    own = model(GPT_OSS, CHANNEL_MARKS, ends=["<|call|>", "<|return|>"])
    think = "<|channel|>analysis<|message|>Hm [x] {1}.<|end|><|start|>assistant"
    remark = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    good, bad = json.dumps({"city": "x", "count": 3}), json.dumps({"city": "x", "count": 2})
    answer = "<|channel|>final<|message|>Well."
    allowed = matcher(own)
    for text in (answer, think + answer, call + good, think + remark + call + good, think + think + answer):
        assert allowed(text) == "", text
    for text in ("Well.", call + bad, think + "<|channel|>other<|message|>", think):
        assert allowed(text) != "", text
    must = matcher(own, required=True)
    assert must(think + call + good) == ""
    assert must(think + answer) != ""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7.5}}, "required": ["n"]}
    formatted = matcher(own, answer={"kind": "json_schema", "body": json.dumps(schema)})
    final = "<|channel|>final<|message|>"
    assert formatted(think + final + '{"n":15}') == ""
    assert formatted(think + final + '{"n":16}') != ""
    assert formatted(answer) != ""
    assert formatted(call + good) == ""
    assert read(own, think + remark + call + good) == ("I look.", [("weather", json.loads(good))])


def test_control_tokens_are_allowed_where_the_format_has_them_and_nowhere_else() -> None:
    style = BY_NAME["mistral"]
    own = models(style)[1]
    body = tool_calls_constraint(
        own.tools.style, TOOLS, None, required=False, parallel=True, token_ids=own.tools.token_ids
    )
    compiled = compile_constraint(Constraint("tool_calls", json.dumps(body)), own.vocabulary)
    matching = LLGuidanceTemplate(compiled.payload, own.vocabulary).start()
    [call, arguments] = own.ids("[TOOL_CALLS][ARGS]")

    def control() -> set[int]:
        mask = matching.mask()
        return {i for i in own.tokenizer.control_ids if mask[i // 32] >> (i % 32) & 1}

    end = set(own.tokenizer.eos_ids)
    assert control() == {call} | end
    for token_id in own.ids("See "):
        assert matching.accept(token_id)
    assert control() == {call} | end
    assert matching.accept(call)
    assert control() == set()
    for token_id in own.ids("weather"):
        assert matching.accept(token_id)
    assert control() == {arguments}
    assert matching.forced() == b""  # a control token is no text to jump forward over
    assert matching.accept(arguments)
    for token_id in own.ids('{"city": "'):
        assert matching.accept(token_id)
    assert control() == set()


def test_the_spelling_of_a_mark_in_plain_tokens_is_no_mark() -> None:
    own = models(BY_NAME["mistral"])[1]
    plain = own.tokenizer.encode("[TOOL_CALLS]now[ARGS]{}")
    parser = ToolCallParser(own.tools.style, FUNCTIONS)
    assert parser.push(own.shown(plain)).text + parser.flush().text == "[TOOL_CALLS]now[ARGS]{}"


CHECKED = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "step": {"type": "number", "multipleOf": 7.5},
        "set": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    },
    "required": ["text"],
}


@pytest.mark.parametrize("style", PLAIN, ids=lambda each: each.name)
def test_what_no_grammar_expresses_is_checked_in_arguments_too(style: ToolFormat) -> None:
    """Whatever stands in a text that looks like the beginning of a value."""
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CHECKED}}]
    fields = style.fields
    decoy = f"{fields.open}step{fields.json.split(chr(10))[0]}1 " if fields is not None else '"step": 1 '
    decoy = re.sub("[\ue000-\ue003]", "", decoy)
    for own in models(style):
        text = decoy if own is models(style)[0] else "plain"
        allowed = matcher(own, tools)
        for good in ({"step": 15}, {"set": ["a", "b"]}, {"step": 7.5, "set": ["a"]}):
            call = ("weather", {"text": text, **good})
            assert allowed(written(style, call)) == allowed(written(style, call, call)) == "", call
        for bad in ({"step": 16}, {"set": ["a", "b", "a"]}):
            call = ("weather", {"text": text, **bad})
            assert allowed(written(style, call)) != "", call
            assert allowed(written(style, ("weather", {"text": text}), call)) != "", call
