"""The messages of Anthropic's API, content blocks and all, made into the messages of a conversation.

Whatever is no text, or cannot be understood, is refused by its place in the body; nothing is dropped but what only the
service that made it can read (sealed thinking of others).
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any

from ...wire.errors import InvalidRequest, Path

Block = dict[str, Any]

SEAL = "sapwood1."
_FIELDS = {
    "text": ("text", "citations"),
    "token_ids": ("token_ids",),
    "tool_use": ("id", "name", "input", "caller", "toolset_name"),
    "tool_result": ("tool_use_id", "content", "is_error", "toolset_name"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
}
_ALLOWED = {
    "system": ("text", "token_ids"),
    "user": ("text", "token_ids", "tool_result"),
    "assistant": ("text", "token_ids", "thinking", "redacted_thinking", "tool_use"),
}
_RESULT_BLOCKS = ("text", "token_ids")
_FAILED = "Error: "  # templates know no failed result: its text says so


@dataclass
class MessageList:
    """messages: as the chat endpoint has them. places: of each, where in the body it begins. continues: the last one
    is an assistant's that the answer goes on from."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    places: list[Path] = field(default_factory=list)
    continues: bool = False

    def begin(self, system: str | list[Block] | None) -> None:
        """The system prompt. Raises InvalidRequest."""
        content = _content("system", system or "", ("system",))
        if content:
            self._add("system", content, ("system",))

    def add(self, messages: list[dict[str, Any]]) -> None:
        """All messages. Raises InvalidRequest."""
        if not messages:
            raise InvalidRequest.about(("messages",), "is empty; it must hold at least one message.")
        for i, message in enumerate(messages):
            place = ("messages", i)
            role = message.get("role")
            if not isinstance(role, str) or role not in _ALLOWED:
                text = f"must be 'user', 'assistant' or 'system'; not {role!r}."
                raise InvalidRequest.about((*place, "role"), text)
            for key in message:
                if key not in ("role", "content", "clear_thinking", "id", "type"):
                    raise InvalidRequest.about((*place, key), "is unknown; a message has role and content.")
            blocks = _blocks(message.get("content"), (*place, "content"))
            if role == "assistant":
                self._assistant(blocks, place, is_last=i == len(messages) - 1)
            else:
                self._user(role, blocks, place)

    def _add(self, role: str, content: Any, place: Path, **more: Any) -> None:
        self.messages.append({"role": role, "content": content, **more})
        self.places.append(place)

    def _user(self, role: str, blocks: list[Block], place: Path) -> None:
        """Results of tools become messages of their own, in the order of the blocks."""
        run: list[Block] = []
        start = (*place, "content")
        for i, block in enumerate(blocks):
            at = (*place, "content", i)
            if _kind(role, block, at) != "tool_result":
                run.append(block)
                continue
            if run:
                self._add(role, _joined(run, start), place)
                run = []
            result = _result(block, at)
            self._add("tool", result, at, tool_call_id=_text(block, "tool_use_id", at))
        if run or not blocks:
            self._add(role, _joined(run, start), place)

    def _assistant(self, blocks: list[Block], place: Path, *, is_last: bool) -> None:
        texts: list[Block] = []
        calls: list[dict[str, Any]] = []
        thought = ""
        for i, block in enumerate(blocks):
            at = (*place, "content", i)
            kind = _kind("assistant", block, at)
            if kind == "tool_use":
                calls.append(_call(block, at))
            elif kind in ("thinking", "redacted_thinking"):
                thought += _thought(block, at)
            else:
                texts.append(block)
        content = _joined(texts, (*place, "content"), between="")
        more: dict[str, Any] = {"reasoning_content": thought} if thought else {}
        if is_last and calls:
            text = "is the last, and calls tools; a user message with a tool_result for each call must follow."
            raise InvalidRequest.about(place, text)
        if is_last and not content and not thought:
            return  # an empty turn to go on from is one that has not begun
        if is_last:
            self.continues = True
            if isinstance(content, str) and content != content.rstrip():
                text = "is the assistant's last and ends in white space, which the answer cannot go on from; strip it."
                raise InvalidRequest.about((*place, "content"), text)
        self._add("assistant", content, place, **more, **({"tool_calls": calls} if calls else {}))


def sealed(thought: str) -> str:
    """The signature of thinking that is not shown: only who knows how can read it back."""
    return SEAL + base64.urlsafe_b64encode(thought.encode("utf-8", "replace")).decode()


def _unsealed(text: str) -> str:
    if not text.startswith(SEAL):
        return ""
    try:
        return base64.urlsafe_b64decode(text.removeprefix(SEAL)).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return ""


def _thought(block: Block, place: Path) -> str:
    """What a block of thinking says; one that was sealed elsewhere says nothing to anybody here."""
    if block["type"] == "redacted_thinking":
        return _unsealed(_text(block, "data", place))
    return _text(block, "thinking", place) or _unsealed(_text({"signature": "", **block}, "signature", place))


def _call(block: Block, place: Path) -> dict[str, Any]:
    arguments = block.get("input", {})
    if not isinstance(arguments, dict):
        raise InvalidRequest.about((*place, "input"), "must be an object.")
    function = {"name": _text(block, "name", place), "arguments": arguments}
    return {"id": _text(block, "id", place), "type": "function", "function": function}


def _result(block: Block, place: Path) -> Any:
    place = (*place, "content")
    blocks = _blocks(block.get("content") or "", place)
    for i, each in enumerate(blocks):
        _known(each, _RESULT_BLOCKS, (*place, i))
    failed = block.get("is_error")
    if not isinstance(failed, bool | None):
        raise InvalidRequest.about((*place[:-1], "is_error"), "must be true or false.")
    content = _joined(blocks, place)
    if not failed:
        return content
    return _FAILED + content if isinstance(content, str) else [{"type": "text", "text": _FAILED}, *content]


def _content(role: str, content: Any, place: Path) -> Any:
    blocks = _blocks(content, place)
    for i, block in enumerate(blocks):
        _kind(role, block, (*place, i))
    return _joined(blocks, place)


def _blocks(content: Any, place: Path) -> list[Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise InvalidRequest.about(place, "must be text or a list of content blocks.")
    return content


def _kind(role: str, block: Any, place: Path) -> str:
    return _known(block, _ALLOWED[role], place)


def _known(block: Any, allowed: tuple[str, ...], place: Path) -> str:
    """The type of a block that may stand here. Raises InvalidRequest."""
    if not isinstance(block, dict):
        raise InvalidRequest.about(place, "must be a content block: an object with a type.")
    kind = block.get("type")
    if kind not in allowed:
        text = f"is {kind!r}, which is not supported here; allowed are {', '.join(allowed)}."
        raise InvalidRequest.about((*place, "type"), text)
    for key in block:
        if key not in ("type", "cache_control", *_FIELDS[kind]):
            names = ", ".join(("type", *_FIELDS[kind], "cache_control"))
            raise InvalidRequest.about((*place, key), f"is unknown; a block of type {kind!r} has {names}.")
    return kind


def _text(block: Block, key: str, place: Path) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise InvalidRequest.about((*place, key), "must be text.")
    return value


def _joined(blocks: list[Block], place: Path, between: str = "\n") -> Any:
    """Text, `between` standing between two blocks of it; a list of parts where token ids are among them."""
    parts: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        if block["type"] == "token_ids":
            parts.append({"type": "token_ids", "token_ids": block.get("token_ids")})
            continue
        text = _text(block, "text", (*place, i))
        if parts and parts[-1]["type"] == "text":
            text = between + text
        parts.append({"type": "text", "text": text})
    if any(part["type"] == "token_ids" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)
