"""Requests to /v1/responses over a scripted front, every answer and event checked by OpenAI's own types."""

from __future__ import annotations

import json

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from sapwood.managers.wire.answers import Finish, ToolCallPiece

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
