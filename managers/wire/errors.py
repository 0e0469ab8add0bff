"""Errors of the serving side: what a request, or the engine under it, can answer with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from ...runtime.errors import SapwoodError

Path = tuple[str | int, ...]
"""Where a field stands, from the request's root: ("messages", 0, "content")."""


def shown(path: Path) -> str:
    """messages[0].content"""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


class FieldError(SapwoodError):
    """Something is wrong with a field. The sentence keeps the fields that it names apart from its other text.

    sentence: pieces of text and paths of fields, in order. Each face says it with the names that its user knows
    (`renamed`); the text, which may quote what the user sent, is never looked into. path: of the offending field.
    """

    def __init__(self, sentence: str | Sequence[str | Path], path: str | Path | None = None) -> None:
        self.sentence: tuple[str | Path, ...] = (sentence,) if isinstance(sentence, str) else tuple(sentence)
        self.path: Path | None = (path,) if isinstance(path, str) else path
        super().__init__("".join(each if isinstance(each, str) else shown(each) for each in self.sentence))

    @classmethod
    def about(cls, path: Path, text: str) -> Self:
        """The error whose sentence begins with the offending field."""
        return cls([path, f" {text}"], path)

    @property
    def field(self) -> str | None:
        """The offending field, written out."""
        return None if self.path is None else shown(self.path)

    def renamed(self, name: Callable[[Path], Path]) -> Self:
        """The same error with every field under the name that a face has for it."""
        sentence = [each if isinstance(each, str) else name(each) for each in self.sentence]
        return type(self)(sentence, None if self.path is None else name(self.path))


class InvalidRequest(FieldError):
    """The request itself is wrong (HTTP 400). `field` names the offending field, when there is one."""


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room in the context. Clients find it by its code, or by words of its sentence."""

    @classmethod
    def of(cls, length: str, max_context: int, path: Path) -> Self:
        """length: of the prompt, in tokens, as far as it is known."""
        limit = f"This model's maximum context length is {max_context} tokens, prompt and completion together"
        return cls(f"{limit}, and the prompt is too long: it has {length} tokens; at most {max_context - 1} fit.", path)


class Overloaded(SapwoodError):
    """The queue is full (HTTP 503); the request was not accepted and may be sent again later."""


class RequestAborted(SapwoodError):
    """The request was aborted by its owner or by shutdown before it finished."""


class RequestFailed(SapwoodError):
    """The request was accepted and could not be completed (HTTP 500); other requests are unharmed."""


class EngineDead(SapwoodError):
    """A child process is gone; nothing can be served until a new engine is started."""


class ConfigError(FieldError):
    """An engine option is unknown, of the wrong type or out of range; the message names the option."""
