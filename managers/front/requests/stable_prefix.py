"""`--stable-prefix`: lines of system messages that change are moved behind what stays, or dropped, and told of.

Else one such line at the front of an agent's system prompt keeps everything behind it from being shared. It must never
change a conversation without saying so, and must take a bounded time for any.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from ...wire.answers import MovedLine
from ...wire.requests import Chat
from ...wire.volatile_lines import LineRule, rule_for

MAX_CHARACTERS = 65_536  # of the system messages together; what is behind them is left as it is
_SYSTEM = ("system", "developer")
_LAST = ("user", "tool", "function")

Message = dict[str, Any]


class StablePrefix:
    """mode: "off", "move" or "drop". patterns: of further lines; they have been checked.

    In mode "move" a line that changes with the day or the conversation goes to the end of its own message, one that may
    change with every request behind the text of the last message of a user or a tool.
    """

    def __init__(self, mode: str, patterns: tuple[str, ...]) -> None:
        self._mode = mode
        self._patterns = tuple(re.compile(pattern) for pattern in patterns)

    def applied(self, chat: Chat) -> tuple[Chat, list[MovedLine]]:
        """The conversation as the model shall see it, and which lines are elsewhere now."""
        if self._mode == "off":
            return chat, []
        messages = list(chat.messages)
        moved: list[MovedLine] = []
        late: list[str] = []
        budget = MAX_CHARACTERS
        last = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].get("role") in _LAST), None)
        for index, message in enumerate(messages):
            if message.get("role") not in _SYSTEM or budget <= 0:
                continue
            content = message.get("content")
            rest, lines, seen = self._split(content, budget)
            budget -= seen
            if self._mode == "drop":
                found = [MovedLine(rule.name, index, None, line) for rule, line in lines]
            elif not text_of(rest).strip():
                continue  # there is nothing that would be shared
            else:
                stay = [(rule, line) for rule, line in lines if not rule.each_request or last is None]
                rest = _with_lines(rest, [line for _, line in stay])
                gone = [(rule, line) for rule, line in lines if (rule, line) not in stay]
                late += [line for _, line in gone]
                found = [MovedLine(rule.name, index, last, line) for rule, line in gone]
                if not _ends_with(text_of(content), [line for _, line in stay]):
                    found += [MovedLine(rule.name, index, index, line) for rule, line in stay]
            if found:
                moved += found
                messages[index] = {**message, "content": rest}
        if late and last is not None:
            messages[last] = {**messages[last], "content": _with_lines(messages[last].get("content"), late)}
        return (replace(chat, messages=messages), moved) if moved else (chat, [])

    def _split(self, content: Any, budget: int) -> tuple[Any, list[tuple[LineRule, str]], int]:
        """A message's content without the lines that change, those lines, and how many characters were looked at."""
        if not isinstance(content, list):
            text = content if isinstance(content, str) else ""
            kept, lines = self._split_text(text, budget)
            return (kept if lines else content), lines, min(len(text), budget)
        parts, lines, seen = [], [], 0
        for part in content:
            text = part.get("text") if isinstance(part, dict) else None
            if not isinstance(text, str) or seen >= budget:
                parts.append(part)
                continue
            kept, found = self._split_text(text, budget - seen)
            seen += min(len(text), budget - seen)
            lines += found
            if kept or not found:
                parts.append({**part, "text": kept} if found else part)
        return parts, lines, seen

    def _split_text(self, text: str, budget: int) -> tuple[str, list[tuple[LineRule, str]]]:
        head = text if len(text) <= budget else text[: text.rfind("\n", 0, budget) + 1]
        kept: list[str] = []
        found: list[tuple[LineRule, str]] = []
        for line in head.split("\n"):
            rule = rule_for(line, self._patterns)
            if rule is None:
                kept.append(line)
            else:
                found.append((rule, line.strip()))
        return "\n".join(kept) + text[len(head) :], found


def text_of(content: Any) -> str:
    """The text of a message's content, parts of it joined."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def _ends_with(text: str, lines: list[str]) -> bool:
    """Whether these lines are the last ones of a text."""
    count = len(lines)
    return count == 0 or [line.strip() for line in text.rstrip().rsplit("\n", count)[-count:]] == lines


def _with_lines(content: Any, lines: list[str]) -> Any:
    """A content with these lines behind its text."""
    if not lines:
        return content
    text = text_of(content)
    added = ("" if not text or text.endswith("\n") else "\n") + "\n".join(lines)
    return [*content, {"type": "text", "text": added}] if isinstance(content, list) else text + added
