"""What Sapwood's answers say beside OpenAI's own fields: an object `sapwood`, where a request constrains its answer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType

from ...constrained.spec import Unenforced


class Relaxed(msgspec.Struct, frozen=True):
    """A keyword of the constraint that is not enforced, where it stands in it (JSON pointer), and why."""

    keyword: str
    pointer: str
    reason: str


class Extension(msgspec.Struct, frozen=True):
    """relaxed: what `strict: false` let pass; empty where the constraint is enforced whole."""

    relaxed: list[Relaxed]


class Extensions:
    """The extension of one request's answers: of a whole one, or of the first chunk of a stream's first choice."""

    def __init__(self, constrained: bool) -> None:
        self._due = constrained

    def next(self, relaxed: Iterable[Unenforced]) -> Extension | UnsetType:
        """The extension where it is due; then nothing more is."""
        if not self._due:
            return UNSET
        self._due = False
        return Extension(relaxed_of(relaxed))


def relaxed_of(relaxed: Iterable[Unenforced]) -> list[Relaxed]:
    return [Relaxed(each.keyword, each.pointer, each.reason) for each in relaxed]
