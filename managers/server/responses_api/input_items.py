"""The items of a response's input, as OpenAI has them, made into the messages of a conversation.

Whatever is no text, or cannot be understood, is refused by its place in the body; nothing is dropped.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...wire.errors import InvalidRequest, Path
from .response_building import ENCRYPTED_PREFIX
from .response_tools import in_namespace

Item = dict[str, Any]

_ROLES = ("user", "system", "developer", "assistant")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_KINDS = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "item_reference",
)


@dataclass
class Conversation:
    """messages: as the chat endpoint has them. places: of each, where in the body it (or its first item) stands."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    places: list[Path] = field(default_factory=list)
    _thought: str = ""
    _thought_at: Path = ()
    _calls: set[str] = field(default_factory=set)

    def instruct(self, instructions: str | list[Item] | None) -> None:
        """What comes before everything else. Raises InvalidRequest."""
        if isinstance(instructions, str):
            self._add(("instructions",), {"role": "system", "content": instructions})
        elif instructions:
            self.add(instructions, ("instructions",))

    def add(self, items: Iterable[Item], place: Path, *, numbered: bool = True) -> None:
        """Go on with these items. place: of their list; of every one of them, unless `numbered`."""
        for i, item in enumerate(items):
            self._take(item, (*place, i) if numbered else place)

    def end(self) -> None:
        """All items are there."""
        if self._thought:
            self._answer(self._thought_at)

    def _add(self, place: Path, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.places.append(place)

    def _answer(self, place: Path) -> dict[str, Any]:
        """A new message of the assistant, with what it thought before it."""
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if self._thought:
            message["reasoning_content"] = self._thought
            self._thought, place = "", self._thought_at
        self._add(place, message)
        return message

    def _take(self, item: Item, place: Path) -> None:
        kind = item_kind(item)
        if not isinstance(item.get("id"), str | None):
            raise InvalidRequest.about((*place, "id"), "must be text.")
        if kind == "reasoning":
            self._thought += _thoughts(item, place)
            self._thought_at = place
        elif kind == "message":
            self._message(item, place)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(kind, item, place)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._output(item, place)
        else:
            text = f"is {kind!r}, which is not supported; supported are {', '.join(_KINDS)}."
            raise InvalidRequest.about((*place, "type"), text)

    def _message(self, item: Item, place: Path) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise InvalidRequest.about((*place, "role"), f"must be one of {', '.join(_ROLES)}; not {role!r}.")
        content = _content(item.get("content"), (*place, "content"))
        if role == "assistant":
            self._answer(place)["content"] = content
        else:
            self.end()
            self._add(place, {"role": role, "content": content})

    def _call(self, kind: str, item: Item, place: Path) -> None:
        last = self.messages[-1] if self.messages else {}
        if self._thought or last.get("role") != "assistant":
            last = self._answer(place)
        namespace = item.get("namespace")
        if not isinstance(namespace, str | None):
            raise InvalidRequest.about((*place, "namespace"), "must be text.")
        name = in_namespace(namespace, _text(item, "name", place))
        call_id = _text(item, "call_id", place)
        self._calls.add(call_id)
        if kind == "function_call":
            said = {"type": "function", "function": {"name": name, "arguments": _text(item, "arguments", place)}}
        else:
            said = {"type": "custom", "custom": {"name": name, "input": _text(item, "input", place)}}
        last.setdefault("tool_calls", []).append({"id": call_id, **said})

    def _output(self, item: Item, place: Path) -> None:
        call_id = _text(item, "call_id", place)
        if call_id not in self._calls:
            text = f"is {call_id!r}; no call before this output has that id."
            raise InvalidRequest.about((*place, "call_id"), text)
        content = _content(item.get("output"), (*place, "output"))
        self.end()
        self._add(place, {"role": "tool", "tool_call_id": call_id, "content": content})


def item_kind(item: Item) -> Any:
    """Its type, which a message may leave out."""
    return item.get("type") or ("message" if "role" in item else None)


def _text(item: Item, name: str, place: Path) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest.about((*place, name), "must be text." if name in item else "is missing.")
    return value


def _content(content: Any, place: Path) -> str | list[dict[str, Any]]:
    """Text, or parts of it."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest.about(place, "must be text or a list of text parts.")
    parts = [_part(part, (*place, i)) for i, part in enumerate(content)]
    if any(part["type"] != "text" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _part(part: Any, place: Path) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in (*_TEXTS, "refusal", "token_ids"):
        allowed = "input_text, output_text and refusal"
        raise InvalidRequest.about((*place, "type"), f"is {kind!r}; only text is supported: {allowed}.")
    if kind == "token_ids":
        return part
    return {"type": "text", "text": _text(part, "refusal" if kind == "refusal" else "text", place)}


def _thoughts(item: Item, place: Path) -> str:
    """The text of a reasoning item: its content, or what this server sealed of it, or its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if not (parts is None or isinstance(parts, list)):
            raise InvalidRequest.about((*place, name), "must be a list of text parts.")
    if item.get("content"):
        return _joined(item["content"], (*place, "content"))
    encrypted = item.get("encrypted_content")
    if encrypted is not None:
        return _opened(encrypted, (*place, "encrypted_content"))
    return _joined(item.get("summary") or [], (*place, "summary"))


def _joined(parts: list[Any], place: Path) -> str:
    content = _content(parts, place)
    if not isinstance(content, str):
        raise InvalidRequest.about(place, "must be text parts.")
    return content


def _opened(encrypted: Any, place: Path) -> str:
    if not (isinstance(encrypted, str) and encrypted.isascii() and encrypted.startswith(ENCRYPTED_PREFIX)):
        raise InvalidRequest.about(place, "is not of this server, which cannot read it; leave the item out.")
    try:
        return base64.b64decode(encrypted.removeprefix(ENCRYPTED_PREFIX), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidRequest.about(place, "is damaged; leave the item out.") from None
