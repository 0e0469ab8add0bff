"""`return_token_ids` on every endpoint, whole and streamed: the ids are those that were read and written."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sapwood.managers.wire.answers import TextChunk
from sapwood.managers.wire.requests import Submit

from .conftest import WORDS, Client, FakeFront

PROMPT = [7, 8, 9]
WRITTEN = [100 + k for k in range(len(WORDS))]
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


class TellingFront(FakeFront):
    """Tells the prompt's ids with the first chunk of the first sample, where they are wanted."""

    def script(self, submit: Submit) -> list[Any]:
        first, *rest = super().script(submit)
        assert isinstance(first, TextChunk)
        return [msgspec.structs.replace(first, prompt_ids=PROMPT if submit.tells_prompt else None), *rest]


@pytest.fixture
def front() -> FakeFront:
    return TellingFront()


def _chat(answer: dict[str, Any]) -> tuple[Any, Any]:
    return answer.get("prompt_token_ids"), answer["choices"][0].get("token_ids") if answer["choices"] else None


def _text(answer: dict[str, Any]) -> tuple[Any, Any]:
    choice = answer["choices"][0]
    return choice.get("prompt_token_ids"), choice.get("token_ids")


def _native(answer: dict[str, Any]) -> tuple[Any, Any]:
    return answer.get("prompt_token_ids"), answer["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("path", "body", "read"),
    [
        ("/v1/chat/completions", MESSAGES, _chat),
        ("/v1/completions", {"prompt": "a", "max_tokens": 20}, _text),
        ("/generate", {"prompt": "a"}, _native),
    ],
)
async def test_ids_whole_and_streamed(client: Client, path: str, body: dict[str, Any], read: Any) -> None:
    status, answer = await client.post(path, {**body, "return_token_ids": True})
    assert status == 200, answer
    assert read(answer) == (PROMPT, WRITTEN)
    streamed = await client.events(path, {**body, "return_token_ids": True})
    events = [read(json.loads(each)) for each in streamed if each != "[DONE]"]
    assert [prompt for prompt, _ in events if prompt is not None] == [PROMPT]
    assert [each for _, ids in events for each in ids or []] == WRITTEN
    _, answer = await client.post(path, body)
    assert "prompt_token_ids" not in json.dumps(answer)


async def test_ids_of_responses_and_messages(client: Client) -> None:
    for path, body in (("/v1/responses", {"input": "hi"}), ("/v1/messages", {**MESSAGES, "max_tokens": 20})):
        status, answer = await client.post(path, {**body, "return_token_ids": True})
        assert status == 200, answer
        assert (answer["prompt_token_ids"], answer["token_ids"]) == (PROMPT, WRITTEN)
        _, answer = await client.post(path, body)
        assert "token_ids" not in json.dumps(answer)
