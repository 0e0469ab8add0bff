"""/v1/responses over a front that answers from a script: its shapes, its events, what it refuses and what it keeps."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from sapwood.managers.wire.answers import Finish, ToolCallPiece
from sapwood.managers.wire.errors import RequestAborted, RequestFailed

from .conftest import TextChunk, logprob_of

PATH = "/v1/responses"
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}
CUSTOM = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}}
SPACE = {"type": "namespace", "name": "fs", "description": "Files", "tools": [{"type": "function", "name": "read"}]}
EVENT = TypeAdapter(ResponseStreamEvent)
PROMPT = [1, 2, 3]


def chunk(submit, number, *, text="", reasoning="", calls=(), finish=None, ids=None):
    token = [logprob_of(100 + number, text, submit.sampling.logprobs)] if submit.sampling.logprobs is not None else []
    return TextChunk(
        submit.request_id, 0, text, [100 + number] if ids is None else ids, 7, 3, number + 1, token,
        finish=Finish(finish) if finish else None, reasoning=reasoning, tool_calls=list(calls),
        prompt_ids=PROMPT if number == 0 and submit.tells_prompt else None,
    )  # fmt: skip


def scripted(front, *steps):
    """Every request is answered by these steps: keyword arguments of `chunk`, or an error."""

    def script(submit):
        return [step if isinstance(step, Exception) else chunk(submit, i, **step) for i, step in enumerate(steps)]

    front.script = script


ALL_KINDS = (
    {"reasoning": "Let me "},
    {"reasoning": "see."},
    {"text": "I "},
    {"text": ""},
    {"text": "look."},
    {"calls": [ToolCallPiece(0, "", "call_1", "look"), ToolCallPiece(0, '{"a"')]},
    {"calls": [ToolCallPiece(0, ":1}"), ToolCallPiece(1, "a", "call_2", "patch", custom=True)]},
    {"calls": [ToolCallPiece(1, "a", custom=True), ToolCallPiece(2, "{}", "call_3", "fs.read")]},
    {"finish": "tool_calls"},
)


async def create(client, **body):
    status, answer = await client.post(PATH, {"input": "Hello", **body})
    assert status == 200, answer
    Response.model_validate(answer, strict=True)
    return answer


async def events_of(client, **body):
    """The events, each valid by OpenAI's types and named as its type says."""
    async with client.session.post(client.url + PATH, json={"input": "Hello", "stream": True, **body}) as response:
        assert response.status == 200, await response.text()
        return read_events((await response.read()).decode())


def read_events(text):
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        events.append(event)
    assert [each["sequence_number"] for each in events] == list(range(events[0]["sequence_number"], len(events)))
    return events


def without_ids(response):
    """What two answers to one request have in common."""
    items = [{key: value for key, value in item.items() if key != "id"} for item in response["output"]]
    rest = {key: value for key, value in response.items() if key not in ("id", "output", "created_at", "completed_at")}
    return {**rest, "output": items}


async def test_a_text_is_answered_and_streamed_alike(client):
    whole = await create(client, max_output_tokens=4)
    assert whole["object"] == "response"
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    (message,) = whole["output"]
    assert (message["type"], message["status"]) == ("message", "incomplete")
    assert message["content"][0]["text"] == "Once upon a time"
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 3
    events = await events_of(client, max_output_tokens=4)
    kinds = [each["type"] for each in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"
    ]  # fmt: skip
    assert kinds[4:-4] == ["response.output_text.delta"] * 4
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"
    ]  # fmt: skip
    assert without_ids(events[-1]["response"]) == without_ids(whole)


@pytest.mark.parametrize("logprobs", [{}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}])
async def test_every_kind_of_output_has_its_events_and_they_add_up(client, front, logprobs):
    scripted(front, *ALL_KINDS)
    body = {"tools": [FUNCTION, CUSTOM, SPACE], **logprobs}
    whole = await create(client, **body)
    assert [item["type"] for item in whole["output"]] == [
        "reasoning", "message", "function_call", "custom_tool_call", "function_call"
    ]  # fmt: skip
    reasoning, message, look, patch, read = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert message["content"][0]["text"] == "I look."
    assert (look["call_id"], look["name"], look["arguments"]) == ("call_1", "look", '{"a":1}')
    assert (patch["call_id"], patch["input"]) == ("call_2", "aa")
    assert (read["namespace"], read["name"], read["arguments"]) == ("fs", "read", "{}")
    assert len(message["content"][0]["logprobs"]) == (3 if logprobs else 0)
    events = await events_of(client, **body)
    final = events[-1]["response"]
    assert without_ids(final) == without_ids(whole)
    deltas: dict[str, str] = {}
    tokens = []
    for event in events:
        if event["type"].endswith(".delta"):
            deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
            tokens += event.get("logprobs", [])
    assert list(deltas.values()) == ["Let me see.", "I look.", '{"a":1}', "aa", "{}"]
    assert list(deltas) == [item["id"] for item in final["output"]]
    assert tokens == final["output"][1]["content"][0]["logprobs"]
    added = [e["item"]["id"] for e in events if e["type"] == "response.output_item.added"]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert added == [item["id"] for item in done]
    assert done == final["output"]
    assert [e["name"] for e in events if e["type"] == "response.function_call_arguments.done"] == ["look", "read"]


async def test_a_completion_without_text_has_an_empty_message(client, front):
    scripted(front, {"finish": "stop"})
    whole = await create(client)
    assert whole["output"][0]["content"][0]["text"] == ""
    assert whole["status"] == "completed"
    events = await events_of(client)
    assert "response.output_text.done" in [each["type"] for each in events]


async def test_what_was_asked_is_told(client):
    asked = {
        "instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.25, "tools": [FUNCTION],
        "tool_choice": {"type": "function", "name": "look"}, "parallel_tool_calls": False, "store": False,
        "max_output_tokens": 3, "truncation": "disabled",
    }  # fmt: skip
    whole = await create(client, **asked)
    for name, value in asked.items():
        if name != "tools":
            assert whole[name] == value, name
    assert whole["tools"][0]["name"] == "look"
    assert whole["error"] is None


async def test_items_become_messages(client, front):
    items = [
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "U"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "A", "annotations": []}, {"type": "refusal", "refusal": "!"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "aa"},
        {"type": "function_call", "call_id": "c3", "namespace": "fs", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "O1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "O2"}]},
        {"type": "function_call_output", "call_id": "c3", "output": ""},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}]},
        {"type": "function_call", "call_id": "c4", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c4", "output": "O4"},
    ]  # fmt: skip
    await create(client, input=items, instructions="I", tools=[FUNCTION, CUSTOM, SPACE])
    messages = front.submits[-1].chat.messages
    assert [each["role"] for each in messages] == [
        "system", "developer", "user", "assistant", "tool", "tool", "tool", "assistant", "tool"
    ]  # fmt: skip
    assert messages[0]["content"] == "I"
    assert (messages[3]["content"], messages[3]["reasoning_content"]) == ("A!", "R")
    calls = [(call["id"], call["function"]["name"]) for call in messages[3]["tool_calls"]]
    assert calls == [("c1", "look"), ("c2", "patch"), ("c3", "fs.read")]
    assert [each["content"] for each in messages[4:7]] == ["O1", "O2", ""]
    assert messages[7]["reasoning_content"] == "S"
    assert {tool["function"]["name"] for tool in front.submits[-1].chat.tools} == {"look", "patch", "fs.read"}


async def test_thoughts_come_back_sealed_and_are_understood(client, front):
    scripted(front, {"reasoning": "Hm — é"}, {"text": "A", "finish": "stop"})
    include = ["reasoning.encrypted_content"]
    first = await create(client, store=False, include=include)
    item = {key: value for key, value in first["output"][0].items() if key != "content"}
    assert "Hm" not in item["encrypted_content"]
    await create(client, input=[{"role": "user", "content": "U"}, item, first["output"][1]], store=False)
    assert front.submits[-1].chat.messages[1]["reasoning_content"] == "Hm — é"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]}, "input[0].encrypted_content"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "teleport"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [FUNCTION, {**FUNCTION, "name": "a b"}]}, "tools[1].name"),
        ({"tools": [{**FUNCTION, "parameters": {"type": "string"}}]}, "tools[0].parameters"),
        ({"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "x"}}]}, "tools[0].format.syntax"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [FUNCTION, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex"),
        ({"background": True, "store": False}, "background"),
        ({"include": ["all"]}, "include[0]"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"n": 2}, "n"),
        ({"truncation": "some"}, "truncation"),
        ({"temperature": -1}, "temperature"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named_as_the_body_has_it(client, body, field):
    status, answer = await client.post(PATH, {"input": "Hello", **body})
    assert (status, answer["error"]["param"]) == (400, field), answer
    assert answer["error"]["type"] == "invalid_request_error"


async def test_tools_of_other_servers_are_left_out_beside_others_and_listed(client, front):
    body = {"input": "x", "tools": [{"type": "web_search"}, FUNCTION, {"type": "local_shell"}], "user": "me"}
    async with client.session.post(client.url + PATH, json=body) as response:
        answer = await response.json()
        assert response.headers["X-Sapwood-Ignored-Fields"] == "user, tools.web_search, tools.local_shell"
    assert [tool["type"] for tool in answer["tools"]] == ["function"]
    assert len(front.submits[-1].chat.tools) == 1


async def test_allowed_tools_and_formats_mean_what_they_mean_for_chat(client, front):
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]}
    await create(client, tools=[FUNCTION, CUSTOM], tool_choice=choice)
    chat = front.submits[-1].chat
    assert (chat.tool_choice, chat.allowed) == ("required", ["patch"])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await create(client, text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}})
    assert json.loads(front.submits[-1].constraint.body) == schema


async def test_a_turn_goes_on_from_the_last_with_its_tokens(client, front):
    scripted(front, {"text": "A"}, {"text": "B", "finish": "stop"})
    first = await create(client, instructions="Only now.")
    second = await create(client, previous_response_id=first["id"], input="More")
    assert second["previous_response_id"] == first["id"]
    chat = front.submits[-1].chat
    assert [(m["role"], m["content"]) for m in chat.messages] == [
        ("user", "Hello"), ("assistant", "AB"), ("user", "More")
    ]  # fmt: skip
    (known,) = chat.known
    assert known.prompt == b"\1\0\0\0\2\0\0\0\3\0\0\0"
    assert known.completion == b"\x64\0\0\0\x65\0\0\0"


async def test_stored_responses_are_read_listed_and_deleted(client, front):
    scripted(front, *ALL_KINDS)
    first = await create(client, tools=[FUNCTION, CUSTOM, SPACE], metadata={"a": "b"})
    outputs = [
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "2"},
    ]
    second = await create(client, previous_response_id=first["id"], input=outputs)
    assert (await client.get(f"{PATH}/{first['id']}")) == (200, first)
    ids = []
    after = ""
    while True:
        status, page = await client.get(f"{PATH}/{second['id']}/input_items?order=asc&limit=3{after}")
        assert status == 200
        ResponseItemList.model_validate(page)
        ids += [item["id"] for item in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert len(ids) == len(set(ids)) == 1 + 5 + 2
    assert ids[1:6] == [item["id"] for item in first["output"]]
    _, newest = await client.get(f"{PATH}/{second['id']}/input_items")
    assert [item["id"] for item in newest["data"]] == ids[::-1]
    async with client.session.delete(f"{client.url}{PATH}/{first['id']}") as response:
        assert await response.json() == {"id": first["id"], "object": "response", "deleted": True}
    assert (await client.get(f"{PATH}/{first['id']}"))[0] == 404
    assert (await client.get(f"{PATH}/{second['id']}"))[0] == 200, "what goes on from it is whole still"
    await create(client, previous_response_id=second["id"])
    assert len(front.submits[-1].chat.messages) > 3


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "order=up", "after=nothing", "limit=x"])
async def test_pages_are_asked_for_rightly(client, query):
    first = await create(client)
    status, answer = await client.get(f"{PATH}/{first['id']}/input_items?{query}")
    assert (status, answer["error"]["param"]) == (400, query.partition("=")[0])


async def test_items_may_be_referred_to(client, front):
    first = await create(client)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    await create(client, input=[{"role": "user", "content": "a"}, reference, {"role": "user", "content": "b"}])
    assert [m["role"] for m in front.submits[-1].chat.messages] == ["user", "assistant", "user"]


async def test_what_is_not_stored_is_nowhere(client, front):
    answer = await create(client, store=False)
    assert (await client.get(f"{PATH}/{answer['id']}"))[0] == 404
    assert not front.submits[-1].tells_prompt


async def test_one_tenant_knows_nothing_of_another(client):
    async def status(method, path, body=None, **headers):
        async with client.session.request(method, client.url + path, json=body, headers=headers) as response:
            return response.status, await response.json()

    _, answer = await status("POST", PATH, {"input": "x"}, Authorization="Bearer a")
    path = f"{PATH}/{answer['id']}"
    assert (await status("GET", path, Authorization="Bearer a"))[0] == 200
    _, salted = await status("POST", PATH, {"input": "x", "cache_salt": "s"}, Authorization="Bearer a")
    assert (await status("GET", f"{PATH}/{salted['id']}?cache_salt=s", Authorization="Bearer a"))[0] == 200
    for where, key in ((path, "Bearer b"), (path, ""), (f"{PATH}/{salted['id']}", "Bearer a")):
        for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            assert (await status(method, where + end, Authorization=key))[0] == 404, (method, where, key)
    reference = {"input": [{"type": "item_reference", "id": answer["output"][0]["id"]}]}
    for body in ({"input": "x", "previous_response_id": answer["id"]}, reference):
        assert (await status("POST", PATH, body, Authorization="Bearer b"))[0] == 400
        assert (await status("POST", PATH, {**body, "cache_salt": "s"}, Authorization="Bearer a"))[0] == 400


async def test_an_error_before_the_first_event_has_its_status_and_a_later_one_its_events(client, front):
    scripted(front, RequestFailed("broken"))
    status, answer = await client.post(PATH, {"input": "x", "stream": True})
    assert (status, answer["error"]["code"]) == (500, "request_failed")
    scripted(front, {"text": "A"}, RequestFailed("broken"))
    events = await events_of(client)
    assert [each["type"] for each in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["output"][0]["status"] == "incomplete"
    _, stored = await client.get(f"{PATH}/{failed['id']}")
    assert stored == failed


async def test_whoever_hangs_up_ends_the_work_and_can_go_on_from_what_there_was(client, front, eventually):
    front.step_seconds = 0.02
    async with client.session.post(client.url + PATH, json={"input": "x", "stream": True}) as response:
        line = (await response.content.readuntil(b"\n\n")).split(b"data: ")[1]
        response_id = json.loads(line)["response"]["id"]
        await response.content.readuntil(b"delta")
    await eventually(lambda: front.left_early == [response_id])
    status, kept = await client.get(f"{PATH}/{response_id}")
    assert (status, kept["status"]) == (200, "cancelled")
    Response.model_validate(kept)
    await create(client, previous_response_id=response_id)
    assert front.submits[-1].chat.messages[1]["content"] == kept["output"][0]["content"][0]["text"] != ""
    assert len(kept["output"]) == len(front.submits[-1].chat.messages) - 2


async def test_a_response_in_the_background_is_polled_and_its_stream_taken_up_anywhere(client, front, eventually):
    front.gate.clear()
    queued = await create(client, background=True)
    assert queued["status"] == "queued"
    path = f"{PATH}/{queued['id']}"
    reading = asyncio.ensure_future(client.session.get(f"{client.url}{path}?stream=true"))
    assert (await client.get(path))[1]["status"] == "queued"
    assert (await client.post(PATH, {"input": "x", "previous_response_id": queued["id"]}))[0] == 400
    front.gate.set()
    events = read_events((await (await reading).read()).decode())
    assert [each["type"] for each in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    _, done = await client.get(path)
    assert done["status"] == "completed"
    assert events[-1]["response"] == done
    for number in (0, 5, len(events) - 2, len(events) - 1, len(events) + 7):
        async with client.session.get(f"{client.url}{path}?stream=true&starting_after={number}") as response:
            text = (await response.read()).decode()
        rest = [json.loads(block.split("data: ")[1]) for block in text.split("\n\n") if block]
        assert rest == events[number + 1 :]
    assert front.left_early == []
    await create(client, previous_response_id=queued["id"])


async def test_a_client_that_hangs_up_leaves_the_background_alone(client, front, eventually):
    front.step_seconds = 0.02
    body = {"input": "x", "stream": True, "background": True}
    async with client.session.post(client.url + PATH, json=body) as response:
        line = (await response.content.readuntil(b"\n\n")).split(b"data: ")[1]
    path = f"{PATH}/{json.loads(line)['response']['id']}"
    while (answer := (await client.get(path))[1])["status"] != "completed":
        assert answer["status"] in ("queued", "in_progress")
        await asyncio.sleep(0.01)
    assert front.left_early == []


async def test_the_background_is_cancelled_once_and_for_all(client, front, eventually):
    front.step_seconds = 0.02
    queued = await create(client, background=True)
    path = f"{PATH}/{queued['id']}"
    await eventually(lambda: bool(front.open))
    for _ in range(2):
        status, answer = await client.post(f"{path}/cancel", {})
        assert (status, answer["status"]) == (200, "cancelled")
    assert front.left_early == [queued["id"]]
    assert (await client.get(path))[1] == answer
    Response.model_validate(answer)
    done = await create(client)
    assert (await client.post(f"{PATH}/{done['id']}/cancel", {}))[0] == 400
    assert (await client.get(f"{PATH}/{done['id']}?stream=true"))[0] == 400


async def test_deleting_or_aborting_what_runs_ends_it(client, front, eventually):
    front.gate.clear()
    first, second = await create(client, background=True), await create(client, background=True)
    async with client.session.delete(f"{client.url}{PATH}/{first['id']}") as response:
        assert response.status == 200
    await eventually(lambda: front.left_early == [first["id"]])
    assert (await client.get(f"{PATH}/{first['id']}"))[0] == 404
    assert (await client.post("/abort", {"request_id": second["id"]}))[0] == 200
    await eventually(lambda: not front.open)
    assert (await client.get(f"{PATH}/{second['id']}"))[1]["status"] == "cancelled"


async def test_a_refused_background_response_fails(client, front):
    scripted(front, RequestAborted("gone"))
    queued = await create(client, background=True)
    await asyncio.sleep(0.02)
    assert (await client.get(f"{PATH}/{queued['id']}"))[1]["status"] == "cancelled"
    scripted(front, RequestFailed("broken"))
    queued = await create(client, background=True)
    await asyncio.sleep(0.02)
    _, failed = await client.get(f"{PATH}/{queued['id']}")
    Response.model_validate(failed)
    assert (failed["status"], failed["error"]["message"]) == ("failed", "broken")
