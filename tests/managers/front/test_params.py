"""What may be asked for, and that everything else is refused by the name of its field before it goes anywhere."""

from __future__ import annotations

import itertools
import json
import time
from functools import reduce
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.managers.front.requests.bodies import decode_body, struct_from
from sapwood.managers.front.requests.params import (
    MAX_STOP_CHARACTERS,
    prompt_runs,
    score_to_submit,
    to_submit,
)
from sapwood.managers.front.requests.request_fields import GenerateRequest, ScoreRequest
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.managers.wire.requests import Submit
from sapwood.runtime.sampling.params import DEFAULT_MAX_TOKENS
from sapwood.runtime.sampling.recommendation import OPENAI_DEFAULTS
from sapwood.runtime.wanted import Wanted

VOCAB = 1000
USER = {"role": "user", "content": "hi"}


def submit(**fields: Any) -> Submit:
    fields = fields if "messages" in fields else {"prompt": "hi", **fields}
    return to_submit(struct_from(fields, GenerateRequest), vocab_size=VOCAB, defaults=OPENAI_DEFAULTS)


def score(**fields: Any) -> Submit:
    fields = {"prompt": "a", "continuations": ["b"], **fields}
    return score_to_submit(struct_from(fields, ScoreRequest), vocab_size=VOCAB)


def refused(call: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        call(**fields)
    return caught.value


OUT_OF_RANGE = [
    ("temperature", -1.0),
    ("temperature", 1e9),
    ("top_p", -0.1),
    ("top_p", -0.1),
    ("top_p", 1.01),
    ("min_p", -0.1),
    ("min_p", 1.5),
    ("top_k", -2),
    ("top_k", 10**40),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", 1e-38),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("max_tokens", -1),
    ("max_tokens", 10**30),
    ("min_tokens", -1),
    ("min_tokens", DEFAULT_MAX_TOKENS + 1),
    ("stop_token_ids", [999_999]),
    ("stop_token_ids", [-1]),
    ("logit_bias", {"999999": 5}),
    ("logit_bias", {"-1": 5}),
    ("logit_bias", {10**30: 5}),
    ("n", 0),
    ("n", 10**6),
    ("logprobs", -1),
    ("logprobs", 101),
    ("prompt_logprobs", -1),
    ("logprob_start", 3),
    ("seed", 2**64),
    ("priority", 2**40),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["a"] * 65),
    ("request_id", ""),
    ("request_id", "x" * 257),
    ("request_id", "two\nlines"),
    ("request_id", "ünprintable"),
    ("cache_salt", "x" * 257),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("add_generation_prompt", True),
    ("continue_final_message", True),
    ("template_kwargs", {"a": 1}),
]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(submit, **{field: value})
    assert error.field == field
    assert field in str(error)
    assert len(str(error)) < 300


FLOATS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]


@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused_as_keyword_and_in_json(field: str, value: float) -> None:
    assert refused(submit, **{field: value}).field == field
    body = json.dumps({"prompt": "hi", field: value}).encode()
    error = refused(lambda: decode_body(body, GenerateRequest))
    assert error.field == field
    assert "finite" in str(error)


def test_a_bias_that_is_not_finite_or_too_large_names_its_token() -> None:
    assert refused(submit, logit_bias={7: float("nan")}).field == "logit_bias.7"
    assert refused(submit, logit_bias={7: 101.0}).field == "logit_bias.7"


WRONG_TYPE = [
    ("temperature", "hot"),
    ("max_tokens", 1.5),
    ("max_tokens", True),
    ("n", "1"),
    ("stop", 3),
    ("stop", [3]),
    ("logit_bias", [1]),
    ("echo", 1),
    ("prompt", 5),
    ("prompt", [True]),
    ("prompt", [[["a"]]]),
    ("seed", 0.5),
]


@pytest.mark.parametrize(("field", "value"), WRONG_TYPE)
def test_a_wrong_type_is_refused_by_name_in_both_ways_in(field: str, value: Any) -> None:
    assert (refused(submit, **{field: value}).field or "").startswith(field)
    body = json.dumps({"prompt": "hi", field: value}).encode()
    assert (refused(lambda: decode_body(body, GenerateRequest)).field or "").startswith(field)


def test_an_unknown_field_is_named_together_with_the_one_that_was_meant_or_all() -> None:
    error = refused(submit, max_tokns=3)
    assert error.field == "max_tokns"
    assert str(error) == "Unknown field 'max_tokns'; did you mean 'max_tokens'?"
    for field, meant in (("guided_json", "json_schema"), ("guided_choice", "choice"), ("text", "prompt")):
        assert str(refused(submit, **{field: "x"})) == f"Unknown field {field!r}; here it is {meant!r}."
    error = refused(submit, sampling_params={"json_schema": "{}"})
    assert str(error).startswith("Unknown field 'sampling_params'; what it holds stands in the request itself, beside")
    assert "'prompt': max_tokens, temperature, json_schema" in str(error)
    error = refused(submit, zzz=3)
    assert str(error).startswith("Unknown field 'zzz'. Allowed are: add_generation_prompt, ")


def test_a_missing_field_is_named() -> None:
    assert refused(lambda: decode_body(b'{"continuations": ["a"]}', ScoreRequest)).field == "prompt"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b'{"prompt": "a"} x', b"\x80\x04"])
def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    refused(lambda: decode_body(body, GenerateRequest))


def test_a_deeply_nested_body_is_refused() -> None:
    bombs = [b'{"messages": [{"a": ' + b"[" * 100_000, b'{"template_kwargs": {"a": ' + b'{"a":' * 100_000]
    for body in bombs:
        assert "nested" in str(refused(lambda body=body: decode_body(body, GenerateRequest)))
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert "nested" in str(refused(submit, messages=[{**USER, "x": nested}]))


def test_what_is_accepted_can_be_sent_and_read_from_deeper_in_a_stack() -> None:
    def travels(message: Submit, frames: int) -> Submit:
        if frames:
            return travels(message, frames - 1)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Submit)

    def accepted(depth: int) -> Submit | None:
        try:
            return submit(messages=[{**USER, "x": reduce(lambda inner, _: [inner], range(depth), 0)}])
        except InvalidRequest:
            return None

    accepted_ones = [message for depth in range(100, 1100, 5) if (message := accepted(depth))]
    assert len(accepted_ones) < 200
    assert travels(accepted_ones[-1], 200) == accepted_ones[-1]


def test_text_that_is_not_unicode_is_refused_by_name() -> None:
    assert refused(submit, prompt=["ok", "\ud800"]).field == "prompt[1]"
    assert refused(submit, stop=["\udfff"]).field == "stop[0]"
    error = refused(lambda: decode_body(b'{"prompt": ["ok", "\\ud800"]}', GenerateRequest))
    assert error.field == "prompt[1]"
    assert "surrogate" in str(error)


def test_what_plain_data_cannot_hold_is_refused_by_name() -> None:
    assert refused(submit, messages=[USER, {**USER, "x": 10**40}]).field == "messages[1].x"
    assert refused(submit, messages=[{**USER, "x": object()}]).field == "messages[0].x"


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["", [], ""]])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    error = refused(submit, prompt=prompt)
    assert error.field == "prompt"
    assert "empty" in str(error)


def test_prompt_and_messages_exclude_each_other() -> None:
    refused(submit, prompt="a", messages=[USER])
    refused(lambda: to_submit(GenerateRequest(), vocab_size=VOCAB, defaults=OPENAI_DEFAULTS))


def test_a_mixed_prompt_becomes_runs_and_the_caller_keeps_his_lists() -> None:
    mine = [1, 2]
    assert prompt_runs(["a", "b", 3, mine, [], 4, "c", [5]], VOCAB) == ["ab", [3, 1, 2, 4], "c", [5]]
    assert prompt_runs([mine, 3], VOCAB) == [[1, 2, 3]]
    assert mine == [1, 2]
    assert prompt_runs([7, 8], VOCAB) == [[7, 8]]


@given(st.lists(st.one_of(st.text(max_size=3), st.integers(0, VOCAB - 1), st.lists(st.integers(0, VOCAB - 1)))))
def test_runs_hold_exactly_what_the_prompt_holds(prompt: list[Any]) -> None:
    def flat(items: list[Any]) -> list[Any]:
        return [each for item in items for each in ([item] if isinstance(item, int) else item)]

    if not flat(prompt):
        return
    runs = prompt_runs(prompt, VOCAB)
    assert flat(runs) == flat(prompt)
    assert all(runs)
    assert all(type(a) is not type(b) for a, b in itertools.pairwise(runs))


@pytest.mark.parametrize("items", [["ab"], ["ab", []], [5], [[5]]])
@pytest.mark.alone
def test_many_neighbours_are_joined_in_no_time(items: list[Any]) -> None:
    began = time.perf_counter()
    [run] = prompt_runs(items * 200_000, VOCAB)
    assert len(run) == 200_000 * (2 if isinstance(run, str) else 1)
    assert time.perf_counter() - began < 3


def test_stop_strings_have_a_longest_length() -> None:
    assert submit(stop="x" * MAX_STOP_CHARACTERS).stop
    assert refused(submit, stop=["a", "x" * (MAX_STOP_CHARACTERS + 1)]).field == "stop"


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    assert refused(submit, prompt=[0, VOCAB]).field == "prompt[1]"
    assert refused(submit, prompt=["a", [1, -1]]).field == "prompt[1]"
    assert submit(prompt=[0, VOCAB - 1]).prompt == [[0, VOCAB - 1]]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "king", "content": "hi"}, "messages[0].role"),
        ({"role": ["user"], "content": "hi"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": ["hi"]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": "f()"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"type": "function"}]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_a_malformed_message_is_refused_by_its_place(message: dict[str, Any], field: str) -> None:
    assert refused(submit, messages=[message]).field == field


def test_every_way_to_say_nothing_in_a_message_is_accepted() -> None:
    contents: list[Any] = [None, "", [], [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]]
    messages = [{"role": "assistant", "content": content, "tool_calls": []} for content in contents]
    chat = submit(messages=[*messages, {"role": "user"}, USER]).chat
    assert chat is not None
    assert len(chat.messages) == 6


def test_no_messages_and_malformed_tools_are_refused() -> None:
    assert refused(submit, messages=[]).field == "messages"
    assert refused(submit, messages=[USER], tools=[{"type": "search"}]).field == "tools[0]"
    assert refused(submit, messages=[USER], echo=True).field == "echo"
    assert refused(submit, messages=[USER], continue_final_message=True, add_generation_prompt=True).field


def test_a_conversation_opens_the_assistants_turn_unless_it_continues_one() -> None:
    def opens(**fields: Any) -> bool:
        chat = submit(messages=[USER], **fields).chat
        assert chat is not None
        return chat.add_generation_prompt

    assert opens()
    assert not opens(continue_final_message=True)
    assert not opens(add_generation_prompt=False)


def test_defaults() -> None:
    plain = submit()
    assert plain.sampling.max_tokens == DEFAULT_MAX_TOKENS
    assert submit(messages=[USER]).sampling.max_tokens == -1
    assert submit(max_tokens=0).sampling.max_tokens == 0
    assert (plain.n, plain.stop, plain.sampling.logprobs, plain.wanted) == (1, [], None, None)
    assert submit().request_id != plain.request_id
    assert submit().sampling.seed != plain.sampling.seed


def test_values_are_carried_over() -> None:
    sent = submit(top_k=-1, temperature=1e-7, stop="x", logit_bias={"5": 1.5}, seed=-1, request_id="me", n=3)
    assert sent.sampling.top_k == 0
    assert sent.sampling.temperature == 0.0
    assert sent.stop == ["x"]
    assert sent.sampling.logit_bias == {5: 1.5}
    assert 0 <= sent.sampling.seed < 2**63
    assert (sent.request_id, sent.n) == ("me", 3)
    assert submit(top_k=10**9).sampling.top_k == VOCAB


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"continuations": []}, "continuations"),
        ({"continuations": ["a", ""]}, "continuations[1]"),
        ({"continuations": [[]]}, "continuations[0]"),
        ({"continuations": [[VOCAB]]}, "continuations[0]"),
        ({"continuations": ["\ud800"]}, "continuations[0]"),
        ({"prompt": [[VOCAB]]}, "prompt[0]"),
        ({"logprobs": 1000}, "logprobs"),
        ({"max_tokens": 3}, "max_tokens"),
    ],
)
def test_a_score_request_is_checked_too(fields: dict[str, Any], field: str) -> None:
    assert refused(score, **fields).field == field


def test_a_score_request_generates_nothing() -> None:
    sent = score(continuations=["b", [1, 2]], logprobs=3)
    assert sent.score == ["b", [1, 2]]
    assert sent.sampling.max_tokens == 0
    assert sent.wanted == Wanted("logprobs", 0, 3)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(GenerateRequest.__struct_fields__), JSON, max_size=4))
def test_whatever_comes_in_leaves_as_a_message_or_an_invalid_request(fields: dict[str, Any]) -> None:
    try:
        request = decode_body(json.dumps({"prompt": "a", **fields}).encode(), GenerateRequest)
        message = to_submit(request, vocab_size=VOCAB, defaults=OPENAI_DEFAULTS)
    except InvalidRequest:
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Submit) == message
