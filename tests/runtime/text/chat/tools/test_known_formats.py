"""Every format of tool calls: what it writes is read back, and any text gives the same in any pieces.

The formats of real chat templates: those in the folder that SAPWOOD_CHAT_TEMPLATES names (see
`test_real_templates.py`); without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.errors import TemplateError
from sapwood.runtime.text.chat.prompts import ChatPrompts
from sapwood.runtime.text.chat.tools.call_parser import Parsed, ToolCallParser
from sapwood.runtime.text.chat.tools.channels import ChannelParser
from sapwood.runtime.text.chat.tools.format_detection import tool_format
from sapwood.runtime.text.chat.tools.known_formats import BY_NAME, IN_ORDER, TOOL_FORMATS
from sapwood.runtime.text.chat.tools.tool_format import LINE, ToolFormat

STYLES = [each for each in IN_ORDER if not each.channels]
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "count": {"type": ["integer", "null"]},
        "any": {},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
    },
}
FUNCTIONS = {"f": SCHEMA, "get_weather": None, "a.b": {"type": "object"}}
Read = tuple[str, str, list[tuple[str, str]], bool]


def read(style: ToolFormat, pieces: Iterable[str]) -> Read:
    """(text, thinking, (name, arguments) of each call, whether calls were made) of a completion in pieces."""
    parser = (ChannelParser if style.channels else ToolCallParser)(style, FUNCTIONS)
    text, thinking, calls = "", "", []
    for piece in [*pieces, None]:
        parsed: Parsed = parser.flush() if piece is None else parser.push(piece)
        text += parsed.text
        thinking += parsed.reasoning
        for each in parsed.calls:
            assert bool(each.name) == (each.index == len(calls)), "the name comes once, and first"
            calls += [(each.name, "")] if each.name else []
            name, arguments = calls[each.index]
            calls[each.index] = (name, arguments + each.arguments)
    return text, thinking, calls, parser.called


def cut(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]


TEXT = st.text(st.sampled_from("ab \"\\'{}[](),:<>/=|\n\té😀_1."), max_size=12) | st.text(max_size=6)
INNER = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.sampled_from(["", "x", "a b", "é", 'q"', "it's"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "l m"]), inner, max_size=2),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "maybe": st.none() | st.sampled_from(["yes", "no way", "NULL", "x\ny"]),
        "count": st.none() | st.integers(-(10**9), 10**9),
        "any": INNER,
        "flag": st.booleans(),
        "list": st.lists(INNER, max_size=3),
    },
)


def is_writable(style: ToolFormat, arguments: dict[str, Any]) -> bool:
    """Whether no string holds the mark that ends it."""
    end = style.fields.end if style.fields is not None else ""
    return not end or end not in json.dumps(arguments, ensure_ascii=False)


@pytest.mark.parametrize("style", STYLES, ids=lambda each: each.name)
@settings(max_examples=25)
@given(data=st.data())
def test_what_a_format_writes_is_read_back(style: ToolFormat, data: st.DataObject) -> None:
    calls = []
    for name in data.draw(st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=1, max_size=3)):
        arguments = data.draw(ARGUMENTS.filter(lambda each: is_writable(style, each))) if name == "f" else {}
        calls.append((name, arguments))
    before = data.draw(st.sampled_from(["", "I will look that up."]))
    text = before + "\n" + style.written([(name, json.dumps(each, ensure_ascii=False)) for name, each in calls])
    whole = read(style, [text])
    assert read(style, cut(data, text)) == whole
    assert [(name, json.loads(each)) for name, each in whole[2]] == calls
    assert (whole[0], whole[3]) == (before, True)


def fragments(style: ToolFormat) -> list[str]:
    """What the format's texts are made of, and other signs."""
    said = [each for each in style._texts() if each]
    written = style.written([("f", '{"text": "x", "count": 1}'), ("a.b", "{}")])
    signs = ["<", "{", "}", "[", "]", ",", " ", "\n", '"', "\\", ":", "x", "é", "=", ")", "f", "null", "1"]
    return [*(each.replace(LINE, "\n") for each in said), written, written[: len(written) // 2], *signs]


@pytest.mark.parametrize("style", IN_ORDER, ids=lambda each: each.name)
@settings(max_examples=40)
@given(data=st.data())
def test_any_text_in_any_pieces_gives_the_same(style: ToolFormat, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(fragments(style)), max_size=8)))
    assert read(style, cut(data, text)) == read(style, [text]) == read(style, text)


@pytest.mark.parametrize("style", STYLES, ids=lambda each: each.name)
def test_text_that_is_no_call_stays_text(style: ToolFormat) -> None:
    unknown = style.written([("nothing", "{}")])
    for text in ("Just text, 1 < 2.", unknown, f"Well: {unknown} so", style.triggers[0], f"a {style.triggers[0]} b"):
        assert read(style, [text])[:1] + read(style, [text])[2:] == (text, [], False)


@pytest.mark.parametrize("style", STYLES, ids=lambda each: each.name)
def test_a_call_that_is_cut_off_is_none_that_was_made(style: ToolFormat) -> None:
    text = style.written([("f", '{"text": "some text", "count": 1}')])
    at = text.index("some text") + 4
    _, _, calls, called = read(style, [text[:at]])
    assert not called
    assert [name for name, _ in calls] in ([], ["f"])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=text>\n\nx\n\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n"
            "<parameter=maybe>\nnull\n</parameter>\n<parameter=any>\n{'a': [1, None, \"it's\"]}\n</parameter>\n"
            "</function>\n</tool_call>",
            {"text": "\nx\n", "flag": True, "maybe": None, "any": {"a": [1, None, "it's"]}},
        ),
        (
            "qwen3-coder",
            "<tool_call><function=f><parameter=text>12</parameter><parameter=new>12</parameter></function></tool_call>",
            {"text": "12", "new": 12},
        ),
        (
            "glm",
            "<tool_call>f<arg_key>text</arg_key><arg_value>{}</arg_value><arg_key>list</arg_key><arg_value>"
            '["</arg_value>"]</arg_value></tool_call>',
            {"text": "{}", "list": ["</arg_value>"]},
        ),
        (
            "lfm2",
            "<|tool_call_start|>[f(text='it\\'s \"so\"', count=None, list=[1, {'k': (2, 3)}], any=\"a,)b\")]"
            "<|tool_call_end|>",
            {"text": 'it\'s "so"', "count": None, "list": [1, {"k": [2, 3]}], "any": "a,)b"},
        ),
        (
            "gemma4",
            '<|tool_call>call:f{any:{a:[1,<|"|>x,}<|"|>],b:{c:true}},count:None,text:<|"|>a "b" {c}<|"|>}<tool_call|>',
            {"any": {"a": [1, "x,}"], "b": {"c": True}}, "count": None, "text": 'a "b" {c}'},
        ),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {"text": "x"}}', {"text": "x"}),
        ("phi4", 'functools[{"name": "f", "arguments": {"text": "x"}}]', {"text": "x"}),
        ("mistral-list", '[TOOL_CALLS] [{"name": "f", "arguments": {"text": "x"}, "id": "abcDEF123"}]', {"text": "x"}),
        (
            "deepseek-v4",
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
            {},
        ),
    ],
)
def test_calls_as_models_and_templates_write_them(name: str, text: str, expected: dict[str, Any]) -> None:
    style = BY_NAME[name]
    _, _, [(called, arguments)], made = read(style, [text])
    assert (called, json.loads(arguments), made) == ("f", expected, True)
    assert read(style, text) == read(style, [text])


def test_strings_are_given_out_as_they_come() -> None:
    parser = ToolCallParser(BY_NAME["qwen3-coder"], FUNCTIONS)
    parser.push("<tool_call>\n<function=f>\n<parameter=text>\n")
    assert [[piece.arguments for piece in parser.push(char).calls] for char in "ab\nc"] == [["a"], ["b"], [], ["\\nc"]]


# --- completions in channels ----------------------------------------------------------------------------------------

_ANALYSIS, _START = "<|channel|>analysis<|message|>Hm, f?<|end|>", "<|start|>assistant"
_FINAL, _TO = "<|channel|>final<|message|>", "<|channel|>commentary to="


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel|>final<|message|>Yes.", ("Yes.", "", [], False)),
        (f"{_ANALYSIS}{_START}<|channel|>final<|message|>Yes.<|return|>", ("Yes.", "Hm, f?", [], False)),
        (
            f'{_ANALYSIS}{_START}{_TO}functions.f <|constrain|>json<|message|>{{"text": "x"}}<|call|>',
            ("", "Hm, f?", [("f", '{"text": "x"}')], True),
        ),
        (
            f'{_ANALYSIS}{_START} to=functions.f<|channel|>commentary json<|message|>{{"text": "x"}}',
            ("", "Hm, f?", [("f", '{"text": "x"}')], True),
        ),
        (
            f"<|channel|>commentary<|message|>I look.<|end|>{_START}{_TO}functions.a.b<|message|>{{}}",
            ("I look.", "", [("a.b", "{}")], True),
        ),
        (
            f"{_TO}python<|message|>print()<|end|>{_START}{_FINAL}x",
            ("x", "print()", [], False),
        ),
        ("<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm", ("", "Hm", [], False)),
        ("no channels at all", ("no channels at all", "", [], False)),
        ("<|channel|>ana", ("", "", [], False)),
    ],
)
def test_channels_are_told_apart(text: str, expected: Read) -> None:
    style = BY_NAME["gpt-oss"]
    assert read(style, [text]) == read(style, text) == expected
    for i in range(len(text)):
        assert read(style, [text[:i], text[i:]]) == expected


# --- real templates -------------------------------------------------------------------------------------------------

FOLDER = os.environ.get("SAPWOOD_CHAT_TEMPLATES")
REAL = {path.stem: path.read_text(encoding="utf-8") for path in sorted(Path(FOLDER).glob("*.jinja"))} if FOLDER else {}
OF_TEMPLATES = {
    "apertus": ["Apertus-8B-Instruct"],
    "apriel": ["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5"],
    "command-r": ["CohereForAI-c4ai-command-r-plus-tool_use"],
    "command-r7b": ["Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"],
    "deepseek-r1": [
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "llama-cpp-deepseek-r1",
    ],
    "deepseek-v3.1": ["deepseek-ai-DeepSeek-V3.1"],
    "deepseek-v3.2": ["deepseek-ai-DeepSeek-V3.2"],
    "deepseek-v4": ["deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"],
    "functionary-v3.1": ["meetkai-functionary-medium-v3.1"],
    "functionary-v3.2": ["meetkai-functionary-medium-v3.2"],
    "functools": ["fireworks-ai-llama-3-firefunction-v2"],
    "gemma": ["google-gemma-2-2b-it"],
    "gemma4": ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"],
    "gigachat3": ["GigaChat3-10B-A1.8B"],
    "gigachat3.1": ["GigaChat3.1-10B-A1.8B"],
    "glm": [
        *("GLM-4.6", "GLM-4.7-Flash", "Spark2.5", "inclusionai-ling-3.0-flash"),
        *("poolside-Laguna-S-2.1", "poolside-Laguna-XS-2.1", "poolside-Laguna-XS.2"),
    ],
    "gpt-oss": ["openai-gpt-oss-120b"],
    "granite": ["ibm-granite-granite-3.3-2B-Instruct"],
    "hermes": [
        *("Bielik-11B-v3.0-Instruct", "HuggingFaceTB-SmolLM3-3B", "MiMo-VL", "Reka-Edge", "Qwen-QwQ-32B"),
        *("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"),
        *("Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "ibm-granite-granite-4.0", "ibm-granite-granite-4.1"),
        *("llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct"),
    ],
    "hunyuan": ["tencent-Hy3"],
    "kimi-k2": ["Kimi-K2-Instruct", "Kimi-K2-Thinking", "moonshotai-Kimi-K2"],
    "lfm2": ["LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct"],
    "llama3": [
        "meta-llama-Llama-3.1-8B-Instruct",
        "meta-llama-Llama-3.2-3B-Instruct",
        "meta-llama-Llama-3.3-70B-Instruct",
    ],
    "minicpm5": ["openbmb-MiniCPM5-1B"],
    "minimax-m1": ["MiniMax-M1"],
    "minimax-m2": ["MiniMax-M2"],
    "mistral": ["mistralai-Ministral-3-14B-Reasoning-2512", "unsloth-mistral-Devstral-Small-2507"],
    "mistral-ids": ["Mistral-Small-3.2-24B-Instruct-2506"],
    "mistral-list": ["mistralai-Mistral-Nemo-Instruct-2407"],
    "muse": ["muse-glimmer"],
    "nemotron-v2": ["NVIDIA-Nemotron-Nano-v2"],
    "qwen3-coder": ["NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen3-Coder", "Qwen3.5-4B", "StepFun3.5-Flash"],
    "seed-oss": ["ByteDance-Seed-OSS"],
    "solar": ["upstage-Solar-Open-100B"],
    "none": ["Kimi-K3", "MiniMax-M3"],
}
EXPECTED = {template: name for name, templates in OF_TEMPLATES.items() for template in templates}


@pytest.mark.parametrize("template", REAL)
def test_the_format_of_a_real_template_is_known(template: str) -> None:
    if template not in EXPECTED:
        pytest.skip("a template that came later")
    style = tool_format("auto", REAL[template])
    assert (style.name if style is not None else "none") == EXPECTED[template]


def test_every_name_can_be_forced() -> None:
    assert [tool_format(name, None) for name in TOOL_FORMATS] == [BY_NAME[name] for name in TOOL_FORMATS]


ROUND = {"text": 'São "Paulo", it\'s {5} km', "count": 7, "flag": True, "list": [1, "x y", None], "any": {"k": [True]}}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "F.", "parameters": SCHEMA}}]


@pytest.mark.parametrize("template", REAL)
def test_calls_of_the_history_are_read_as_what_they_were(template: str, with_control_tokens: Any, shown: Any) -> None:
    """The history's call, in the prompt that the template makes of it, is the call as the model would have made it."""
    style = tool_format("auto", REAL[template])
    if style is None:
        pytest.skip("no format")
    tokenizer = with_control_tokens([])
    arguments = {**ROUND, "text": "so"} if style.name == "lfm2" else ROUND  # its template does not escape quotes
    call = {"id": "abcDEF123", "type": "function", "function": {"name": "f", "arguments": json.dumps(arguments)}}
    conversation = [
        {"role": "user", "content": "QUESTION"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcDEF123", "content": "RESULT"},
    ]
    prompts = ChatPrompts({"default": REAL[template]}, tokenizer, lambda source: style)
    try:
        prompt = shown(tokenizer, prompts.render(conversation, TOOLS, add_generation_prompt=False))
    except TemplateError as error:
        pytest.skip(f"not rendered: {error}")
    turn = prompt[prompt.rindex("QUESTION") + len("QUESTION") : prompt.rindex("RESULT")]
    _, _, calls, _ = read(style, [turn])
    assert [(name, json.loads(each)) for name, each in calls] == [("f", arguments)]
