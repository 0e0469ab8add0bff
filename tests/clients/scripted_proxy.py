"""A proxy between an agent and Sapwood that makes the model call tools by a script.

A model of 135M parameters cannot drive an agent. So each request of the agent gets one field more, a `regex` that is
the text of the next scripted call as the model's format has it (and `tool_choice: none` with the last answer); the
model writes it, and Sapwood reads the call out of what it wrote. Nothing else of the request is changed, except that
streams of chats are asked for their usage, and nothing of the answer. What the answers say of their tokens is kept.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

SIDE_ANSWER = "A short answer."  # to what an agent asks beside its conversation, such as a title
_HOP = {"host", "content-length", "connection", "accept-encoding", "transfer-encoding", "content-encoding"}


@dataclass(frozen=True)
class Call:
    """The tool to call, by the first of these names that the agent offers, and its arguments."""

    names: tuple[str, ...]
    arguments: Mapping[str, Any]


@dataclass
class Turn:
    """One request of the conversation: where it went, the call or text that was forced, and what it cost."""

    path: str
    forced: str
    status: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    answer: str = ""


@dataclass
class ScriptedProxy:
    """Sends on to `upstream`; the k-th turn of the conversation makes the k-th call, the last one says `final`.

    The conversation is the first one that offers a tool of the script; whatever an agent asks beside it, such as a
    title, is on the side. count: how many calls a request's conversation holds.
    """

    upstream: str
    script: Sequence[Call]
    final: str = "All done."
    url: str = ""
    turns: list[Turn] = field(default_factory=list)
    side: list[Turn] = field(default_factory=list)
    count: Callable[[Mapping[str, Any]], int] = lambda body: results_so_far(body)
    _beginning: str = ""

    def rewritten(self, path: str, body: dict[str, Any]) -> Turn:
        """Add the constraint to this body; the turn that it is."""
        names = tool_names(body.get("tools") or [])
        beginning = json.dumps([body.get("system"), body.get("instructions"), _items(body)[:1]])
        scripted = any(name in names for call in self.script for name in call.names)
        if scripted and not self._beginning:
            self._beginning = beginning
        is_main = scripted and beginning == self._beginning
        called = min(self.count(body), len(self.script))
        if is_main and called < len(self.script):
            call = self.script[called]
            name = next(each for each in call.names if each in names)
            said = json.dumps({"name": name, "arguments": call.arguments}, ensure_ascii=False)
            turn = Turn(path, f"<tool_call>[{said}]</tool_call>")
        else:
            turn = Turn(path, self.final if is_main else SIDE_ANSWER)
            if names:
                body["tool_choice"] = {"type": "none"} if path.endswith("/messages") else "none"
        body["regex"] = re.escape(turn.forced)
        (self.turns if is_main else self.side).append(turn)
        return turn

    def check_reuse(self, share: float = 0.99, *, retold: bool = False) -> None:
        """From the second turn on this share of the tokens of earlier turns came from the cache.

        The tokens of earlier turns are the prompt and the completion of the turn before, but for the completion's last
        token: it was chosen, and nothing was computed from it. `retold`: this agent writes its calls anew, in words of
        its own, when it sends them back; then only the prompt before counts.
        """
        for before, turn in zip(self.turns, self.turns[1:]):
            earlier = before.prompt + (0 if retold else before.completion - 1)
            assert turn.cached >= share * earlier, (
                f"of {earlier} tokens of earlier turns {turn.cached} were cached, in turn {self.turns.index(turn) + 1} "
                f"of {[(each.prompt, each.cached, each.completion) for each in self.turns]}"
            )

    def check_loop(self, turns: int) -> None:
        """So many turns, all of them answered, made of one conversation that grows."""
        assert [turn.status for turn in self.turns + self.side] == [200] * len(self.turns + self.side), self.trouble()
        assert len(self.turns) == turns, self.trouble()
        prompts = [turn.prompt for turn in self.turns]
        assert prompts == sorted(prompts), prompts

    def trouble(self) -> str:
        return "\n".join(
            f"{turn.path} {turn.status} {turn.forced[:80]!r}: {turn.answer[:600]}" for turn in self.turns + self.side
        )


def tool_names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names under which the model can call these tools of any of the three APIs."""
    names: list[str] = []
    for tool in tools:
        if tool.get("type") == "namespace":
            names += [f"{tool['name']}.{name}" for name in tool_names(tool.get("tools") or [])]
        else:
            said = tool.get("function") or tool.get("custom") or tool
            names += [said["name"]] if "name" in said else []
    return names


def _items(body: Mapping[str, Any]) -> list[Any]:
    items = body.get("messages") or body.get("input") or []
    return items if isinstance(items, list) else [items]


def answers_so_far(body: Mapping[str, Any]) -> int:
    """How many turns of the assistant this conversation holds."""
    return sum(1 for item in _items(body) if isinstance(item, dict) and item.get("role") == "assistant")


def results_so_far(body: Mapping[str, Any]) -> int:
    """How many results of tools this conversation holds."""
    count = 0
    for item in _items(body):
        if not isinstance(item, dict):
            continue
        content = item.get("content")
        blocks = content if isinstance(content, list) else []
        count += item.get("role") == "tool" or str(item.get("type")).endswith("_call_output")
        count += sum(1 for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result")
    return count


def note_usage(turn: Turn, usage: Mapping[str, Any]) -> None:
    """Take down the counts of any of the three APIs."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    if "cache_read_input_tokens" in usage:
        turn.cached = usage["cache_read_input_tokens"] or turn.cached
        fresh = (usage.get("input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
        turn.prompt = max(turn.prompt, fresh + turn.cached)
    else:
        turn.cached = details.get("cached_tokens", turn.cached)
        turn.prompt = usage.get("prompt_tokens", usage.get("input_tokens", turn.prompt))
    turn.completion = usage.get("completion_tokens", usage.get("output_tokens", turn.completion))


def _note_events(turn: Turn, text: str) -> None:
    for line in text.splitlines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data.startswith("{"):
            _note_answer(turn, json.loads(data))


def _note_answer(turn: Turn, answer: Mapping[str, Any]) -> None:
    for holder in (answer, answer.get("response") or {}, answer.get("message") or {}):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            note_usage(turn, holder["usage"])


@contextmanager
def proxied(upstream: str, script: Sequence[Call], **options: Any) -> Iterator[ScriptedProxy]:
    """A proxy that runs in a thread of its own; options: as in ScriptedProxy."""
    proxy = ScriptedProxy(upstream, script, **options)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(_start(proxy), loop).result(10)
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _start(proxy: ScriptedProxy) -> web.AppRunner:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await _pass_on(proxy, request)

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    return runner


async def _pass_on(proxy: ScriptedProxy, request: web.Request) -> web.StreamResponse:
    data, turn, path = await request.read(), None, request.path.rstrip("/")
    if request.method == "POST" and path.endswith(("/chat/completions", "/responses", "/messages")):
        body = json.loads(data)
        turn = proxy.rewritten(path, body)
        if path.endswith("/chat/completions") and body.get("stream"):
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        data = json.dumps(body).encode()
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session,
        session.request(request.method, proxy.upstream + request.path_qs, data=data, headers=headers) as answer,
    ):
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        parts: list[bytes] = []
        async for part in answer.content.iter_any():
            parts.append(part)
            if answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                await response.write(part)
        text = b"".join(parts).decode()
        if turn is not None:
            turn.status, turn.answer = answer.status, text
            if answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                _note_events(turn, text)
            elif text.startswith("{"):
                _note_answer(turn, json.loads(text))
        if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
            await response.write(b"".join(parts))
        await response.write_eof()
        return response
