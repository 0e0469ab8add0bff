"""Constraints and tools through `Engine`, with everything real and SmolLM2."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from sapwood import Engine
from sapwood.managers.wire.errors import InvalidRequest

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = "A person, as JSON:\n"
ASK = [{"role": "user", "content": "Who is Ann?"}]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    with Engine(smollm2_path, kv_tokens=4096, max_context=1024, threads=1, audit=True, poison_freed=True) as engine:
        yield engine


def test_every_sample_matches_and_the_effort_is_told(engine: Engine) -> None:
    answer = engine.generate(PROMPT, json_schema=SCHEMA, n=4, max_tokens=100, seed=1)
    for completion in answer.completions:
        assert completion.finish_reason == "stop"
        jsonschema.validate(json.loads(completion.text), SCHEMA)
        assert completion.effort is not None
        assert 0 < completion.effort.forward_passes <= completion.completion_tokens
        assert completion.effort.forced > 0, "the grammar writes the names of the properties"
    assert answer.relaxed == []
    assert len({completion.text for completion in answer.completions}) > 1


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "[ab]{3}|c+"}, "[ab]{3}|c+"),
        ({"ebnf": 'root ::= greeting " you"\ngreeting ::= "hello" | "hi"'}, "(hello|hi) you"),
        ({"choice": ["yes", "no", "yes and no"]}, "yes|no|yes and no"),
        ({"json_object": True}, r"\{.*\}"),
        ({"json_schema": True, "max_string": 3}, ".*"),
        ({"structural_tag": {"triggers": ["<"], "structures": [{"begin": "<a>", "regex": "x+", "end": "</a>"}],
                             "at_least_one": True, "stop_after_first": True}}, "<a>x+</a>"),
    ],
)  # fmt: skip
def test_each_kind_of_constraint_holds(engine: Engine, fields: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        answer = engine.generate(PROMPT, max_tokens=60, seed=seed, **fields)
        if answer.finish_reason == "stop":
            assert re.fullmatch(pattern, answer.text, re.DOTALL), answer.text


def test_open_objects_have_no_invented_properties_unless_wanted(engine: Engine) -> None:
    inner = {"type": "object", "properties": {"n": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"q": {"enum": ["a", "b"]}, "in": inner}, "required": ["q", "in"]}
    fields: dict[str, Any] = {"json_schema": schema, "max_tokens": 100, "temperature": 0.1, "n": 4, "seed": 1}
    for completion in engine.generate(PROMPT, **fields).completions:
        value = json.loads(completion.text)
        assert (value.keys(), value["in"].keys() - {"n"}) == ({"q", "in"}, set())
    wanted = engine.generate(PROMPT, **fields, extra_properties=True)
    assert any(completion.finish_reason == "length" for completion in wanted.completions)


@pytest.mark.parametrize(
    "open_",
    [
        {"required": ["a", "b"]},
        {"minProperties": 2},
        {"patternProperties": {"^b": {"const": 1}}, "required": ["b"]},
        {"additionalProperties": {"const": 1}, "required": ["b"]},
        {"properties": {}, "required": ["b"]},
    ],
)
def test_what_a_schema_wants_beside_its_named_properties_is_there(engine: Engine, open_: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, **open_}
    answer = engine.generate(PROMPT, json_schema=schema, max_tokens=200, seed=1, max_string=4)
    if answer.finish_reason == "stop":
        jsonschema.validate(json.loads(answer.text), schema)


def test_a_stream_is_the_whole_and_says_what_was_relaxed_first(engine: Engine) -> None:
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "name": {"type": "string", "format": "name-like"}}}
    fields: dict[str, Any] = {"json_schema": schema, "strict": False, "max_string": 9, "max_tokens": 80, "seed": 3}
    whole = engine.generate(PROMPT, **fields)
    chunks = list(engine.generate_stream(PROMPT, **fields))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [each.keyword for each in whole.relaxed] == ["format"]
    assert [chunk.relaxed for chunk in chunks if chunk.relaxed] == [whole.relaxed]
    assert chunks[0].relaxed == whole.relaxed


def test_what_cannot_be_enforced_is_refused_by_field_keyword_and_place(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}}
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=r"^json_schema: .*\$ref.*/properties/a") as caught:
            engine.generate(PROMPT, json_schema=schema)
        assert caught.value.field == "json_schema"
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    place = "tools[1].function.parameters"
    for choice in ("auto", {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(InvalidRequest, match=r"\$ref at /properties/a") as caught:
            engine.generate(messages=ASK, tools=[TOOL, tool], tool_choice=choice)
        assert caught.value.field == place
        assert str(caught.value).startswith(f"{place}: ")


def test_tools_are_called_whole_and_in_pieces(engine: Engine) -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 150, "temperature": 0}
    answer = engine.generate(messages=ASK, **fields, n=2)
    for completion in answer.completions:
        assert (completion.finish_reason, completion.text) == ("tool_calls", "")
        for call in completion.tool_calls:
            assert call.name == "look_up"
            jsonschema.validate(json.loads(call.arguments), SCHEMA)
    pieces = [piece for chunk in engine.generate_stream(messages=ASK, **fields) for piece in chunk.tool_calls]
    joined = "".join(piece.arguments for piece in pieces if piece.index == 0)
    assert joined == answer.tool_calls[0].arguments
    assert len({call.id for completion in answer.completions for call in completion.tool_calls}) == sum(
        len(completion.tool_calls) for completion in answer.completions
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        {"type": "object", "properties": {}},
        {"type": "object"},
    ],
)
def test_a_tool_without_properties_is_called_with_none(engine: Engine, parameters: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "refresh", "description": "Reload", "parameters": parameters}}
    for choice in ("required", {"type": "function", "function": {"name": "refresh"}}):
        answer = engine.generate(
            messages=ASK, tools=[tool], tool_choice=choice, parallel_tool_calls=False, max_tokens=100, seed=4
        )
        assert (answer.finish_reason, answer.text) == ("tool_calls", "")
        assert [call.arguments for call in answer.tool_calls] == ["{}"]


def test_an_idle_worker_loads_what_the_first_grammar_needs(smollm2_path: Path) -> None:
    others = workers()
    with Engine(smollm2_path, kv_tokens=1024, max_context=512, threads=1) as engine:
        assert engine.generate("x", max_tokens=1).finish_reason == "length"
        [worker] = workers() - others
        assert not has_loaded(worker, "llguidance"), "it would compete with the first requests"
        deadline = time.monotonic() + 30
        while not has_loaded(worker, "llguidance"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert engine.generate("x", regex="a{3}", max_tokens=5).text == "aaa"


def workers() -> set[psutil.Process]:
    """Of all engines of this process."""
    return {each for each in psutil.Process().children() if "sapwood.managers.worker" in each.cmdline()}


def has_loaded(process: psutil.Process, library: str) -> bool:
    """Whether a native library is in a process's memory."""
    return any(library in each.path for each in process.memory_maps())


def test_a_killed_compiler_is_replaced_and_ends_with_the_engine(smollm2_path: Path) -> None:
    with Engine(smollm2_path, kv_tokens=1024, max_context=512, threads=1) as engine:
        engine.generate("x", regex="a{3}", max_tokens=5)
        for process in compilers():
            os.kill(process.pid, signal.SIGKILL)
        assert engine.generate("x", regex="a{4}", max_tokens=5).text == "aaaa"
        left = compilers()
        assert left
    deadline = time.monotonic() + 5
    while any(process.is_running() for process in left):
        assert time.monotonic() < deadline, "a compiler outlives its engine"
        time.sleep(0.05)


def compilers() -> list[psutil.Process]:
    """The grammar compilers of this process's engines."""
    below = psutil.Process().children(recursive=True)
    return [each for each in below if any("grammars.compiler_process" in part for part in each.cmdline())]


@pytest.mark.parametrize("tool_format", ["hermes", "llama3"])
def test_the_format_of_calls_is_an_option(smollm2_path: Path, tool_format: str) -> None:
    with Engine(smollm2_path, kv_tokens=2048, max_context=1024, threads=1, tool_format=tool_format) as engine:
        for choice in ("required", {"type": "function", "function": {"name": "look_up"}}):
            answer = engine.generate(
                messages=ASK, tools=[NOW, TOOL], tool_choice=choice, parallel_tool_calls=False, max_tokens=150, seed=2
            )
            assert (answer.finish_reason, answer.text) == ("tool_calls", "")
            [call] = answer.tool_calls
            jsonschema.validate(json.loads(call.arguments), SCHEMA if call.name == "look_up" else {"maxProperties": 0})
            assert call.name == "look_up" or choice == "required"
        free = engine.generate(messages=ASK, tools=[NOW, TOOL], max_tokens=20, temperature=0)
        assert free.text or free.tool_calls


def test_with_tools_the_answer_is_the_constraints_or_a_call(engine: Engine) -> None:
    """As at OpenAI: under auto one or the other, with required the call alone, with none the answer alone."""
    answer_schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    kinds = set()
    fields: dict[str, Any] = {
        "tools": [TOOL],
        "json_schema": answer_schema,
        "max_tokens": 150,
        "parallel_tool_calls": False,
    }
    answer = engine.generate(messages=ASK, **fields, n=8, temperature=1.5, seed=3)
    for completion in answer.completions:
        kinds.add(completion.finish_reason)
        if completion.tool_calls:
            assert completion.text == ""
            jsonschema.validate(json.loads(completion.tool_calls[0].arguments), SCHEMA)
        else:
            assert json.loads(completion.text) == {"city": "Rome"}
    assert kinds <= {"stop", "tool_calls"}
    must = engine.generate(messages=ASK, **fields, tool_choice="required", seed=1)
    assert (must.finish_reason, must.text, len(must.tool_calls)) == ("tool_calls", "", 1)
    del fields["parallel_tool_calls"]
    shown = engine.generate(messages=ASK, **fields, tool_choice="none", seed=1)
    assert (json.loads(shown.text), shown.tool_calls) == ({"city": "Rome"}, [])


def test_a_custom_tool_gets_text_that_its_grammar_allows(engine: Engine) -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": 'say "[a-c]{3}"\\n'}}
    tool = {"type": "custom", "custom": {"name": "run", "format": grammar}}
    choice = {"type": "custom", "custom": {"name": "run"}}
    fields: dict[str, Any] = {"tools": [TOOL, tool], "tool_choice": choice, "max_tokens": 100, "seed": 5}
    answer = engine.generate(messages=ASK, **fields)
    [call] = answer.tool_calls
    assert (call.name, call.custom, answer.finish_reason) == ("run", True, "tool_calls")
    assert re.fullmatch('say "[a-c]{3}"\n', call.arguments)
    pieces = [piece for chunk in engine.generate_stream(messages=ASK, **fields) for piece in chunk.tool_calls]
    assert "".join(piece.arguments for piece in pieces) == call.arguments
    assert all(piece.custom for piece in pieces)
    lark = {
        "type": "grammar",
        "grammar": {"syntax": "lark", "definition": 'start: "x\\"" WORD "\\n"\nWORD: /[a-z]{2}/'},
    }
    tool["custom"]["format"] = lark
    [call] = engine.generate(messages=ASK, **fields).tool_calls
    assert re.fullmatch('x"[a-z]{2}\n', call.arguments)
