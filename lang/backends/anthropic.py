"""The backend for Anthropic's messages API."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from ..errors import BackendError, ProgramMisuse, Unsupported
from ..history import History, messages_of
from ..ir import Gen, GenOptions, Role, Select
from .base import Backend, Completed, Emit, Sample, TokenCounts, refuse_options
from .http import HttpClient
from .native import patiently

ANTHROPIC_URL = "https://api.anthropic.com"
API_VERSION = "2023-06-01"
_OPTIONS = frozenset({"max_tokens", "stop", "temperature", "top_p", "top_k"})
_NAMES = {"stop": "stop_sequences"}


class Anthropic(Backend):
    """A model behind Anthropic's messages API.

    It sees the messages of a state; system messages must come first. An assistant's message may begin with text before
    its `gen`, as far as the model allows that. Everything but max_tokens, stop, temperature, top_p and top_k is
    refused, as is `select`.
    """

    def __init__(
        self, model: str, *, base_url: str = ANTHROPIC_URL, api_key: str | None = None, timeout: float = 600.0
    ) -> None:
        """api_key: the environment's ANTHROPIC_API_KEY unless given. timeout: seconds without a byte after which the
        server counts as gone. Raises ProgramMisuse where Anthropic's own address is used without a key."""
        key = api_key or os.environ.get("ANTHROPIC_API_KEY")
        if key is None and base_url == ANTHROPIC_URL:
            raise ProgramMisuse("Anthropic's API needs a key: give api_key=…, or set ANTHROPIC_API_KEY.")
        headers = {"anthropic-version": API_VERSION, **({"x-api-key": key} if key else {})}
        self._http = HttpClient(base_url, headers, timeout)
        self.model = model
        self.name = f"{model} at {self._http.base_url}"

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()

    def check_gen(self, gen: Gen, options: GenOptions, role: Role | None, begun: bool) -> None:
        refuse_options(self.name, options, _OPTIONS)
        if role != "assistant":
            raise Unsupported(f"{self.name} is a chat model; a gen must be in an assistant's message.")

    def check_select(self, select: Select, role: Role | None) -> None:
        raise Unsupported(f"{self.name} cannot select: its API scores no given text.")

    async def generate(self, history: History, options: GenOptions, emit: Emit | None) -> Completed:
        given = {_NAMES.get(name, name): value for name, value in options.given().items()}
        body = {"model": self.model, **self._conversation(history), **given}
        if emit is None:
            answer = msgspec.json.decode(await patiently(lambda: self._http.post("/v1/messages", body)))
        else:
            answer = await patiently(lambda: self._streamed(body, emit))
        text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        reason = "length" if answer.get("stop_reason") == "max_tokens" else "stop"
        return Completed([Sample(text, (text,) if text else (), reason)], _usage(answer.get("usage") or {}))

    def _conversation(self, history: History) -> dict[str, Any]:
        messages, outside = messages_of(history)
        if outside.strip():
            raise Unsupported(f"{self.name} is a chat model; it has no place for text outside of messages.")
        lead = [each.content for each in messages if each.role == "system"]
        rest = messages[len(lead) :]
        if any(each.role == "system" for each in rest):
            raise Unsupported(f"{self.name} takes system messages only before all others.")
        shown = [{"role": each.role, "content": each.content} for each in rest if each.closed or each.content]
        return {"messages": shown, **({"system": "\n\n".join(lead)} if lead else {})}

    async def _streamed(self, body: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """The answer put together from its events, in the form that one which is not streamed has."""
        text, reason, usage = "", None, {}
        async for data in self._http.events("/v1/messages", {**body, "stream": True}):
            event = msgspec.json.decode(data)
            match event["type"]:
                case "message_start":
                    usage = dict(event["message"].get("usage") or {})
                case "content_block_delta" if event["delta"]["type"] == "text_delta":
                    text += event["delta"]["text"]
                    emit(event["delta"]["text"])
                case "message_delta":
                    reason = event["delta"].get("stop_reason")
                    usage |= event.get("usage") or {}
        if reason is None:
            raise BackendError(f"{self.name} ended a stream before its completion was.")
        return {"content": [{"type": "text", "text": text}], "stop_reason": reason, "usage": usage}


def _usage(usage: dict[str, Any]) -> TokenCounts:
    """The API counts cached tokens beside the prompt's others."""
    cached = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    prompt = usage.get("input_tokens", 0) + cached + written
    return TokenCounts(prompt, cached, usage.get("output_tokens", 0))
