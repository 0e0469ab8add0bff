"""What /v1/responses keeps: conversations gone on from, read, deleted; and what it computes in the background."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai.types.responses import Response, ResponseItemList

from sapwood.managers.wire.errors import RequestAborted, RequestFailed

from .responses_support import ALL_KINDS, CUSTOM, FUNCTION, PATH, SPACE, create, events_of, read_events, scripted


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
    chat = front.submits[-1].chat
    assert [m["role"] for m in chat.messages] == ["user", "assistant", "user"]


async def test_who_refers_to_items_keeps_their_tokens_and_calls_where_all_is_as_it_was(client, front):
    scripted(front, *ALL_KINDS)
    first = await create(client, tools=[FUNCTION, CUSTOM, SPACE])
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    for words, shows in (("Hello", ["Let me see.", "I look.", "look", "patch", "fs.read"]), ("Hi", [])):
        await create(client, instructions="I", input=[{"role": "user", "content": words}, *references])
        (known,) = front.submits[-1].chat.known
        assert known.completion == b"".join(bytes([100 + i, 0, 0, 0]) for i in range(len(ALL_KINDS)))
        assert known.shows == shows


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
    status, answer = await client.post(f"{path}/cancel", {})
    assert (status, answer["status"]) == (200, "cancelled")
    assert (await client.post(f"{path}/cancel", {})) == (200, answer)
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


async def test_what_runs_in_the_background_ends_with_the_server(client, front):
    """As after SIGTERM: the front ends what is open, and whoever reads its events gets their end."""
    front.step_seconds = 0.02
    body = {"input": "x", "stream": True, "background": True}
    async with client.session.post(client.url + PATH, json=body) as response:
        await response.content.readuntil(b"delta")
        client.state.set_phase("stopping", "The server is shutting down.")
        await front.stop()
        text = await response.read()
    assert b"response.completed" not in text
    assert not front.open
