"""Completions in channels, as gpt-oss writes them: thinking, text and calls are messages, each with a header.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
    <|message|>{…}<|call|>

What a header says decides what its message is: a call of `functions.NAME`, thinking (`analysis`), or text (`final`, and
`commentary` to nobody, which models write before calls).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from .call_parser import CallPiece, Parsed
from .tool_format import ToolFormat

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([A-Za-z0-9_.-]+)")
_CHANNEL, _MESSAGE, _START, _END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"
_ENDS = (_END, "<|call|>", "<|return|>")


class Channels:
    """The frame of such completions for a grammar."""

    def frame(self, style: ToolFormat, token_ids: Mapping[str, int]) -> dict[str, Any]:
        """Thinking and remarks before anything else, and text in the final channel."""

        def parts(text: str) -> list[Any]:
            return style.parts(_in_marks(text, style), "", token_ids)

        after = parts(f"{_END}{_START}assistant")
        return {
            "lead": [
                {"begin": parts(f"{_CHANNEL}{name}{_MESSAGE}"), "end": after} for name in ("analysis", "commentary")
            ],
            "text": {"begin": parts(f"{_CHANNEL}final{_MESSAGE}"), "end": []},
            "once": True,
        }


CHANNELS = Channels()


def _in_marks(text: str, style: ToolFormat) -> str:
    """A text with a model's characters for its control tokens."""
    for mark, written in style.marks.items():
        text = text.replace(mark, written)
    return text


class ChannelParser:
    """Reads one completion. It may begin within a header, as where the prompt ends with `<|start|>assistant`.

    over: a call has ended, and with it the turn.
    """

    def __init__(self, style: ToolFormat, functions: Mapping[str, Any] | Collection[str], *, inside: str = "") -> None:
        """functions: those that can be called. inside: the channel in which the prompt has left the completion."""
        self._functions = functions
        self._marks = {mark: _in_marks(mark, style) for mark in (_CHANNEL, _MESSAGE, _START, "<|constrain|>", *_ENDS)}
        self._in_header = not inside
        self._began = bool(inside)  # whether there was a header, or is one
        self._kind = {"analysis": "reasoning"}.get(inside, "text")
        self._held = ""
        self._count = 0
        self._in_call = False
        self.over = False

    @property
    def called(self) -> bool:
        return self._count > 0 and not self._in_call

    def push(self, text: str) -> Parsed:
        """What these next characters make certain."""
        out: dict[str, list[str]] = {"text": [], "reasoning": []}
        pieces: list[CallPiece] = []
        self._held += text
        while self._held and not self.over:
            if self._read_header(pieces) if self._in_header else self._read_message(out, pieces):
                break
        return Parsed("".join(out["text"]), pieces, "".join(out["reasoning"]))

    def flush(self) -> Parsed:
        """At the end of the completion: what was held back, and the end of a call that ends with the completion."""
        held, self._held = self._held, ""
        if self._in_header:
            is_plain = self._mark(_CHANNEL) not in held and not self._began
            return Parsed(held if is_plain else "", [])
        if self._in_call:
            self._in_call = False
            return Parsed("", [CallPiece(self._count - 1, held)] if held else [])
        return Parsed(held, []) if self._kind == "text" else Parsed("", [], held if self._kind == "reasoning" else "")

    def _mark(self, mark: str) -> str:
        return self._marks[mark]

    def _read_header(self, pieces: list[CallPiece]) -> bool:
        """Up to its message; whether more characters are needed."""
        message = self._mark(_MESSAGE)
        at = self._held.find(message)
        if at < 0:
            return True
        header, self._held = self._held[:at], self._held[at + len(message) :]
        self._in_header, self._began = False, True
        recipient = _RECIPIENT.search(header)
        name = recipient[1] if recipient else ""
        _, _, channel = header.rpartition(self._mark(_CHANNEL))
        self._in_call = name in self._functions
        if self._in_call:
            self._kind = "call"
            pieces.append(CallPiece(self._count, "", name))
            self._count += 1
        elif name and name != "assistant":
            self._kind = "reasoning"  # for a tool that there is not: nobody's text
        else:
            self._kind = "reasoning" if channel.strip().startswith("analysis") else "text"
        return False

    def _read_message(self, out: dict[str, list[str]], pieces: list[CallPiece]) -> bool:
        """The message, up to its end; whether more characters are needed."""
        marks = [mark for each in (*_ENDS, _START, _CHANNEL) if (mark := self._mark(each))]
        found = [(at, -len(mark), mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        if not found:
            safe = len(self._held) - max((_overlap(self._held, mark) for mark in marks), default=0)
            self._give(self._held[:safe], out, pieces)
            self._held = self._held[safe:]
            return True
        at, _, mark = min(found)
        self._give(self._held[:at], out, pieces)
        self._held = self._held[at + (0 if mark == self._mark(_CHANNEL) else len(mark)) :]
        self._in_header = True
        if self._in_call:
            self._in_call, self.over = False, True
        return False

    def _give(self, text: str, out: dict[str, list[str]], pieces: list[CallPiece]) -> None:
        if not text:
            return
        if self._kind != "call":
            out[self._kind].append(text)
        elif pieces and pieces[-1].index == self._count - 1:
            last = pieces[-1]
            pieces[-1] = CallPiece(last.index, last.arguments + text, last.name, last.id)
        else:
            pieces.append(CallPiece(self._count - 1, text))


def _overlap(text: str, mark: str) -> int:
    """The length of the longest end of `text` that is a beginning of `mark`."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
