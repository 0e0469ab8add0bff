"""Tells what a model thought from what it answers, as the text comes.

How the text is cut into pieces makes no difference, and what was given out is never taken back.
"""

from __future__ import annotations

from .marks import Begins, ReasoningFormat

SPACE = " \t\r\n"


class ReasoningParser:
    """Reads one completion: perhaps thinking between its marks, then the answer. Space beside a mark is part of
    neither.

    A completion that begins with something else than the opening mark is answer from its first character on, and so is
    whatever follows the first closing mark. Without a closing mark everything after the opening one is thinking.
    is_over: only answer can follow.
    """

    def __init__(self, marks: ReasoningFormat, begins: Begins, gap: str | None = None) -> None:
        """gap: the space that follows the closing mark, no more and no less; None for whatever space there is."""
        self._marks = marks
        self._inside = begins == "inside"
        self._gap = gap
        self._held = ""
        self.is_over = begins == "answer"
        self._starts = not self.is_over  # nothing of the thinking, or of the answer after it, was given out yet

    @property
    def has_thought(self) -> bool:
        """Whether there is thinking, as far as is known."""
        return self._inside

    def push(self, text: str) -> tuple[str, str]:
        """(thinking, answer) that these next characters make certain."""
        if self.is_over:
            return "", self._answer(text)
        text, self._held = self._held + text, ""
        if not self._inside:
            stripped = text.lstrip(SPACE)
            if len(stripped) < len(self._marks.opening) and self._marks.opening.startswith(stripped):
                self._held = text
                return "", ""
            if not stripped.startswith(self._marks.opening):
                self.is_over, self._starts = True, False
                return "", text
            self._inside = True
            text = stripped[len(self._marks.opening) :]
        return self._think(text)

    def flush(self) -> tuple[str, str]:
        """At the end of the completion: what was held back."""
        held, self._held = self._held, ""
        if self.is_over:
            return "", ""  # what is held is the beginning of the gap
        return (held.rstrip(SPACE), "") if self._inside else ("", held)

    def _think(self, text: str) -> tuple[str, str]:
        if self._starts:
            text = text.lstrip(SPACE)
        thought, closed, rest = text.partition(self._marks.closing)
        if closed:
            self.is_over, self._starts = True, True
            return thought.rstrip(SPACE), self._answer(rest)
        certain = text[: _possible_start(text, self._marks.closing)].rstrip(SPACE)
        self._held = text[len(certain) :]
        self._starts = self._starts and not certain
        return certain, ""

    def _answer(self, text: str) -> str:
        """What of it is no space after the mark."""
        if not self._starts:
            return text
        text, self._held = self._held + text, ""
        if self._gap is None:
            text = text.lstrip(SPACE)
            self._starts = not text
            return text
        if len(text) < len(self._gap) and self._gap.startswith(text):
            self._held = text
            return ""
        self._starts = False
        return text.removeprefix(self._gap)


def _possible_start(text: str, mark: str) -> int:
    """Where the longest tail of `text` that is a beginning of `mark` starts; len(text) where there is none."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return len(text) - size
    return len(text)
