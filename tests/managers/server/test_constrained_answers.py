"""Constraints and tool calls on the HTTP endpoints: what reaches the engine, and what its answers become."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from sapwood.constrained.spec import Constraint, Unenforced
from sapwood.managers.wire.answers import Effort, Finish, TextChunk, TokenLogprob, ToolCallPiece
from sapwood.managers.wire.requests import Submit

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
PROMPT = {"prompt": "hi"}
BODIES = {"/v1/completions": PROMPT, "/v1/chat/completions": {"messages": USER}, "/generate": PROMPT}
RELAXED = Unenforced("uniqueItems", "/properties/a", "no grammar can")
SHOWN = {"keyword": "uniqueItems", "pointer": "/properties/a", "reason": "no grammar can"}


def chunk(submit: Submit, index: int, text: str = "", **more: Any) -> TextChunk:
    return TextChunk(submit.request_id, index, text, [1], 7, 3, 1, [], **more)


def named(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **more}}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"regex": "a+"}, Constraint("regex", "a+")),
        ({"ebnf": 'root ::= "a"'}, Constraint("ebnf", 'root ::= "a"')),
        ({"choice": ["a", "b"]}, Constraint("choice", '["a","b"]')),
        ({"json_object": True, "max_string": 9}, Constraint("json_object", max_string=9)),
        ({"json_schema": SCHEMA, "max_whitespace": 0}, Constraint("json_schema", SCHEMA_TEXT, max_whitespace=0)),
        ({"json_schema": SCHEMA_TEXT, "strict": False}, Constraint("json_schema", SCHEMA_TEXT, strict=False)),
        ({"json_schema": {}, "grammar_engine": "llguidance"}, Constraint("json_schema", "{}", engine="llguidance")),
    ],
)
async def test_native_fields_are_the_same_on_every_endpoint(client, front, path, fields, constraint):
    status, answer = await client.post(path, {**BODIES[path], **fields, "n": 2})
    assert status == 200, answer
    assert [(submit.constraint, submit.n) for submit in front.submits] == [(constraint, 2)]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("response_format", "constraint"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, Constraint("json_object")),
        (named(), Constraint("json_schema", SCHEMA_TEXT)),
        (named(strict=None, description="d"), Constraint("json_schema", SCHEMA_TEXT)),
        (named(strict=True), Constraint("json_schema", SCHEMA_TEXT)),
        (named(strict=False), Constraint("json_schema", SCHEMA_TEXT, strict=False)),
        (named(schema=True), Constraint("json_schema", "true")),
    ],
)
async def test_response_format_is_a_constraint(client, front, path, response_format, constraint):
    status, answer = await client.post(path, {**BODIES[path], "response_format": response_format})
    assert status == 200, answer
    assert front.submits[0].constraint == constraint
    assert ("sapwood" in answer) == (constraint is not None)


async def test_options_of_a_constraint_go_with_response_format_too(client, front):
    body = {"messages": USER, "response_format": named(), "strict": False, "max_string": 0}
    assert (await client.post("/v1/chat/completions", body))[0] == 200
    expected = Constraint("json_schema", SCHEMA_TEXT, strict=False, max_string=0)
    assert front.submits[0].constraint == expected


async def test_a_refused_schema_is_named_as_the_client_sent_it(client, front):
    from sapwood.managers.wire.errors import InvalidRequest

    text = ": not at /properties/json_schema/prompt, 'max_tokens' template_kwargs."
    front.script = lambda submit: [InvalidRequest([("json_schema",), text], "json_schema")]
    for body, param in (({"response_format": named()}, "response_format"), ({"json_schema": {}}, "json_schema")):
        status, answer = await client.post("/v1/chat/completions", {"messages": USER, **body})
        assert (status, answer["error"]["param"]) == (400, param)
        assert answer["error"]["message"] == f"{param}{text}"


async def test_only_fields_are_renamed_in_a_refusal_never_what_the_client_wrote(client):
    status, answer = await client.post(
        "/v1/chat/completions",
        {"messages": USER, "max_completion_tokens": 3, "min_tokens": 5, "chat_template_kwargs": {"max_tokens": 1}},
    )
    assert (status, answer["error"]["param"]) == (400, "min_tokens")
    assert answer["error"]["message"] == "min_tokens 5 is above max_completion_tokens 3."
    kwargs = {"template_kwargs": {"max_tokens": 10**30}}
    status, answer = await client.post("/v1/chat/completions", {"messages": USER, "chat_template_kwargs": kwargs})
    assert (status, answer["error"]["param"]) == (400, "chat_template_kwargs.template_kwargs.max_tokens")
    assert answer["error"]["message"].startswith("chat_template_kwargs.template_kwargs.max_tokens is an integer")
    body = {"prompt": ["a", "b"], "response_format": named(), "regex": "json_schema prompt"}
    status, answer = await client.post("/v1/completions", body)
    assert answer["error"]["message"] == "Give one of response_format and regex, not both."


async def test_an_item_of_a_batch_is_named_and_its_text_is_not(client, front):
    from sapwood.managers.wire.errors import InvalidRequest

    sentences = (["The prompt 'prompt' is too long."], [("prompt",), " 'prompt' is too long."])
    told = ("prompt[1]: The prompt 'prompt' is too long.", "prompt[1] 'prompt' is too long.")
    usual = type(front).script
    for sentence, message in zip(sentences, told, strict=True):
        error = InvalidRequest(sentence, "prompt")
        front.script = lambda submit, error=error: [error] if submit.prompt == ["b"] else usual(front, submit)
        status, answer = await client.post("/v1/completions", {"prompt": ["a", "b"]})
        assert (status, answer["error"]["param"]) == (400, "prompt[1]")
        assert answer["error"]["message"] == message


@pytest.mark.parametrize(
    "given", [{"type": "json_schema", "schema": {}}, {"type": "json_schema", "json_schema": {"type": "object"}}]
)
async def test_a_schema_without_its_wrapper_is_shown_the_right_shape(client, given):
    status, answer = await client.post("/v1/chat/completions", {"messages": USER, "response_format": given})
    assert status == 400
    shape = '{"type": "json_schema", "json_schema": {"name": "answer", "schema": {…}}}'
    assert answer["error"]["message"].endswith(f"{shape}.")
    assert "response_format.json_schema" in answer["error"]["message"]


def effortful(submit: Submit) -> list[Any]:
    """Two samples; the constraint was relaxed."""
    return [
        chunk(submit, 1, "a"),
        chunk(submit, 0, "", relaxed=[RELAXED]),
        chunk(submit, 0, "b", finish=Finish("stop"), effort=Effort(5, 4, 3, 2)),
        chunk(submit, 1, "c", finish=Finish("length"), effort=Effort(50, 40, 30, 20)),
    ]


COUNTS = {"forward_passes": 55, "speculated_tokens": 44, "accepted_tokens": 33, "forced_tokens": 22}
COUNTS |= {"drafted_tokens": 44}  # the old name, for one release


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_openai_answers_say_what_was_relaxed_and_what_it_took(client, front, path):
    front.script = effortful
    body = {**BODIES[path], "n": 2, "json_schema": {}, "strict": False}
    _, whole = await client.post(path, body)
    assert whole["sapwood"] == {"relaxed": [SHOWN]}
    details = whole["usage"]["completion_tokens_details"]
    assert details == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 33,
        "rejected_prediction_tokens": 11,
        "sapwood": COUNTS,
    }
    events = await client.events(path, {**body, "stream_options": {"include_usage": True}})
    chunks = [json.loads(event) for event in events[:-1]]
    assert [each["sapwood"] for each in chunks if "sapwood" in each] == [{"relaxed": [SHOWN]}]
    assert chunks[-1]["usage"] == whole["usage"]


async def test_generate_says_per_sample_what_was_relaxed_and_what_it_took(client, front):
    front.script = effortful
    body = {"prompt": "hi", "n": 2, "json_schema": {}, "strict": False}
    _, whole = await client.post("/generate", body)
    first, second = whole["choices"]
    assert (first["relaxed"], second["relaxed"]) == ([SHOWN], [])
    assert first["effort"] == {
        "forward_passes": 5,
        "speculated_tokens": 4,
        "accepted_tokens": 3,
        "forced_tokens": 2,
        "drafted_tokens": 4,
    }
    choices = [json.loads(event)["choices"][0] for event in (await client.events("/generate", body))[:-1]]
    assert [each["relaxed"] for each in choices] == [[], [SHOWN], [], []]
    assert [each["effort"] is None for each in choices] == [True, True, False, False]


async def test_without_a_constraint_answers_are_as_openai_has_them(client):
    _, answer = await client.post("/v1/chat/completions", {"messages": USER})
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert set(answer["choices"][0]["message"]) == {"role", "content", "refusal"}


# --- tools ------------------------------------------------------------------------------------------------------------


def calling(submit: Submit) -> list[Any]:
    """Some text, then two calls, in pieces."""
    pieces = [
        ("Let me see.", []),
        ("", [ToolCallPiece(0, "", "call_0", "f")]),
        ("", [ToolCallPiece(0, '{"a"'), ToolCallPiece(0, ": 1}"), ToolCallPiece(1, "{", "call_1", "g")]),
        ("", []),
        ("", [ToolCallPiece(1, "}")]),
    ]
    chunks = [chunk(submit, 0, text, tool_calls=calls) for text, calls in pieces]
    return [*chunks, chunk(submit, 0, finish=Finish("tool_calls"))]


CALLS = [
    {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
    {"id": "call_1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
]


async def test_tool_calls_are_a_message_and_an_end_of_their_own(client, front):
    front.script = calling
    _, answer = await client.post("/v1/chat/completions", {"messages": USER, "tools": TOOLS})
    message = {"role": "assistant", "content": "Let me see.", "refusal": None, "tool_calls": CALLS}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}]
    assert front.submits[0].chat.tool_choice == "auto"


async def test_nothing_but_calls_has_no_content(client, front):
    front.script = lambda submit: calling(submit)[1:]
    _, answer = await client.post("/v1/chat/completions", {"messages": USER, "tools": TOOLS})
    assert answer["choices"][0]["message"]["content"] is None
    front.script = lambda submit: [chunk(submit, 0, finish=Finish("stop"))]
    _, answer = await client.post("/v1/chat/completions", {"messages": USER, "tools": TOOLS})
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "", "refusal": None}


async def test_streamed_calls_open_with_id_and_name_and_join_to_the_whole(client, front):
    front.script = calling
    events = await client.events("/v1/chat/completions", {"messages": USER, "tools": TOOLS})
    chunks = [json.loads(event) for event in events[:-1]]
    deltas = [each["choices"][0]["delta"] for each in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1] == {"content": "Let me see."}
    assert deltas[2]["tool_calls"] == [
        {"index": 0, "function": {"arguments": "", "name": "f"}, "id": "call_0", "type": "function"}
    ]
    joined: dict[int, dict[str, Any]] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
        known = joined.setdefault(call["index"], {"function": {"arguments": ""}})
        assert ("id" in call) == ("name" in call["function"]) == ("id" not in known)
        known |= {key: call[key] for key in ("id", "type") if key in call}
        known["function"] |= {"name": call["function"].get("name", known["function"].get("name"))}
        known["function"]["arguments"] += call["function"]["arguments"]
    assert list(joined.values()) == CALLS
    assert [each["choices"][0]["finish_reason"] for each in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    assert deltas[-1] == {}


async def test_the_end_of_a_stream_and_the_opening_of_a_call_have_chunks_of_their_own(client, front):
    """The whole answer in one chunk of the engine's: text, a call and its end."""

    def script(submit: Submit) -> list[Any]:
        pieces = [ToolCallPiece(0, '{"a": 1}', "call_0", "f"), ToolCallPiece(1, "x\n", "call_1", "g", custom=True)]
        return [chunk(submit, 0, "Well.", tool_calls=pieces, finish=Finish("tool_calls"))]

    front.script = script
    events = await client.events("/v1/chat/completions", {"messages": USER, "tools": TOOLS})
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    opening = {"index": 0, "function": {"arguments": "", "name": "f"}, "id": "call_0", "type": "function"}
    custom = {"index": 1, "custom": {"input": "", "name": "g"}, "id": "call_1", "type": "custom"}
    assert [each["delta"] for each in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "Well."},
        {"tool_calls": [opening]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
        {"tool_calls": [custom]},
        {"tool_calls": [{"index": 1, "custom": {"input": "x\n"}}]},
        {},
    ]
    assert [each["finish_reason"] for each in choices] == [None] * 6 + ["tool_calls"]
    _, answer = await client.post("/v1/chat/completions", {"messages": USER, "tools": TOOLS})
    assert answer["choices"][0]["message"]["tool_calls"][1] == {
        "id": "call_1",
        "type": "custom",
        "custom": {"name": "g", "input": "x\n"},
    }
    _, answer = await client.post("/generate", {"messages": USER, "tools": TOOLS})
    assert answer["choices"][0]["tool_calls"][1] == {
        "index": 1,
        "id": "call_1",
        "name": "g",
        "arguments": "x\n",
        "custom": True,
    }


async def test_generate_takes_tools_and_gives_calls(client, front):
    front.script = calling
    body = {"messages": USER, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    _, answer = await client.post("/generate", body)
    [choice] = answer["choices"]
    assert choice["tool_calls"] == [
        {"index": 0, "id": "call_0", "name": "f", "arguments": '{"a": 1}'},
        {"index": 1, "id": "call_1", "name": "g", "arguments": "{}"},
    ]
    assert (choice["text"], choice["finish_reason"]) == ("Let me see.", "tool_calls")
    chat = front.submits[0].chat
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("required", False)


async def test_log_probabilities_have_the_tokens_of_calls_too(client, front):
    def script(submit: Submit) -> list[Any]:
        tokens = [TokenLogprob(i, f"t{i}", b"t%d" % i, -0.5, []) for i in range(3)]
        texts = [("Hm.", []), ("", [ToolCallPiece(0, "{}", "call_0", "f")]), ("", [])]
        chunks = [chunk(submit, 0, text, tool_calls=calls) for text, calls in texts]
        ends = [None, None, Finish("tool_calls")]
        return [replace(c, logprobs=[t], finish=end) for c, t, end in zip(chunks, tokens, ends)]

    front.script = script
    body = {"messages": USER, "tools": TOOLS, "logprobs": True}
    _, answer = await client.post("/v1/chat/completions", body)
    whole = [each["token"] for each in answer["choices"][0]["logprobs"]["content"]]
    assert whole == ["t0", "t1", "t2"]
    events = await client.events("/v1/chat/completions", body)
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert [each["token"] for c in choices if c["logprobs"] for each in c["logprobs"]["content"]] == whole
