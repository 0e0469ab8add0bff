"""Errors keep fields apart from text: each face names the fields its own way, and nothing that a user wrote changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.__main__ import main
from sapwood.managers.front.keyword_options import config_from
from sapwood.managers.front.requests.bodies import decode_body, struct_from
from sapwood.managers.front.requests.params import to_submit
from sapwood.managers.front.requests.request_fields import GenerateRequest
from sapwood.managers.wire.answers import Rejected
from sapwood.managers.wire.errors import ConfigError, InvalidRequest, Path, shown
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS

PATHS = st.lists(st.one_of(st.text(max_size=5), st.integers(0, 9)), min_size=1, max_size=4).map(tuple)
SENTENCES = st.lists(st.one_of(st.text(max_size=20), PATHS), min_size=1, max_size=5)


def test_a_path_is_written_with_dots_and_brackets() -> None:
    assert shown(("messages", 0, "tool_calls", 2, "function")) == "messages[0].tool_calls[2].function"
    error = InvalidRequest.about(("prompt", 3), "is empty.")
    assert (str(error), error.field) == ("prompt[3] is empty.", "prompt[3]")


@given(SENTENCES, st.one_of(st.none(), PATHS))
def test_a_refusal_travels_whole(sentence: list[str | Path], path: Path | None) -> None:
    error = InvalidRequest(sentence, path)
    sent = msgspec.msgpack.encode(Rejected.of("id", error))
    found = msgspec.msgpack.decode(sent, type=Rejected).error()
    assert isinstance(found, InvalidRequest)
    assert (found.sentence, found.path, str(found)) == (error.sentence, error.path, str(error))


@given(SENTENCES)
def test_renaming_touches_fields_only(sentence: list[str | Path]) -> None:
    told = InvalidRequest(sentence).renamed(lambda path: ("x",))
    assert str(told) == "".join("x" if isinstance(each, tuple) else each for each in sentence)


HOSTILE = [
    "a - at `$.temperature`",
    "a` - at `$.temperature`",
    "max_tokens",
    "`array`, got `object`",
    "Expected `array`, got `object`",
    "field",
    "a\nfield `b`",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_an_unknown_field_is_quoted_as_it_is(name: str) -> None:
    if name == "max_tokens":
        name = "max_tokens\u200b"
    for call in (
        lambda: decode_body(msgspec.json.encode({"prompt": "a", name: 1}), GenerateRequest),
        lambda: struct_from({"prompt": "a", name: 1}, GenerateRequest),
    ):
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert str(caught.value).startswith(f"Unknown field {name!r}")
        assert caught.value.field == name


@pytest.mark.parametrize("value", ["Expected `array`, got `object`", "`null` - at `$.seed`", "array"])
def test_a_quoted_value_keeps_its_words(value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        struct_from({"prompt": "a", "regex": "a", "grammar_engine": value}, GenerateRequest)
    assert str(caught.value) == f"grammar_engine: invalid enum value {value!r}."
    assert caught.value.field == "grammar_engine"


def test_types_are_named_in_the_callers_words() -> None:
    def complaint(call: Any) -> str:
        with pytest.raises(InvalidRequest) as caught:
            call()
        return str(caught.value)

    python = complaint(lambda: struct_from({"prompt": "a", "stop_token_ids": {}}, GenerateRequest))
    assert python == "stop_token_ids: expected `list`, got `dict`."
    body = b'{"prompt": "a", "stop_token_ids": {}}'
    assert complaint(lambda: decode_body(body, GenerateRequest)) == "stop_token_ids: expected `array`, got `object`."


def test_an_engines_options_are_called_options_and_a_field_in_a_value_stays_one() -> None:
    with pytest.raises(ConfigError, match=r"^threads: expected `int`, got `str`\.$"):
        config_from({"threads": "field"})
    with pytest.raises(ConfigError, match=r"^schedule must be one of lpm, fcfs; not 'the field'\.$"):
        config_from({"schedule": "the field"})


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("generate x --top-p 2", "sapwood generate: --top-p must be between 0.0 and 1.0, not 2.0."),
        ("generate x --stop=", "sapwood generate: --stop must not hold an empty string."),
        ("serve --kv-tokens -1", "sapwood serve: --kv-tokens must be between 0 and"),
    ],
)
def test_the_command_line_names_its_flags(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_a_schema_in_text_is_quoted_as_it_is() -> None:
    request = struct_from({"prompt": "a", "json_schema": "json_schema"}, GenerateRequest)
    with pytest.raises(InvalidRequest) as caught:
        to_submit(request, vocab_size=10, defaults=OPENAI_DEFAULTS)
    told = caught.value.renamed(lambda path: ("response_format", *path[1:]))
    assert str(told).startswith("response_format is text that is not JSON: ")
