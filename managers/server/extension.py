"""What Sapwood's answers say beside OpenAI's own fields: an object `sapwood`, where a request constrains its answer, or
asks why its prompt was not cached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from ...constrained.spec import Unenforced
from ..front.generation import Completion
from ..wire.answers import MissReason, TextChunk


class Relaxed(msgspec.Struct, frozen=True):
    """A keyword of the constraint that is not enforced, where it stands in it (JSON pointer), and why."""

    keyword: str
    pointer: str
    reason: str


class MessagePlace(msgspec.Struct, frozen=True):
    """A message of the request, counted from 0."""

    index: int
    role: str


class Moved(msgspec.Struct, frozen=True):
    """A line of a system message that `--stable-prefix` put behind the text of message `to`; null where it was dropped.
    kind: what it is, "date" for instance."""

    kind: str
    message: int
    to: int | None
    line: str


class CacheAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prompt left the cached path: `position` is the first token that it had to compute. reason: see
    `managers.wire.answers.MissReason`. message: of a conversation, the one that this lies in; null behind the last one.
    character: the place in the prompt's text. cached_text, prompt_text: how the path goes on there, and how the prompt
    does. cached_tokens: more than `position` where others computed what comes later meanwhile.
    """

    cached_tokens: int
    position: int
    reason: MissReason
    message: MessagePlace | None
    character: int | None
    cached_text: str
    prompt_text: str
    moved_lines: list[Moved]


class Extension(msgspec.Struct, frozen=True):
    """relaxed: what `strict: false` let pass, where there is a constraint; empty where it is enforced whole. cache:
    where `explain_cache` asks for it; for several prompts, of each."""

    relaxed: list[Relaxed] | UnsetType = UNSET
    cache: CacheAnswer | list[CacheAnswer] | UnsetType = UNSET


class Extensions:
    """The extension of one request's answers: of a whole one, or of the first chunk of a stream's first choice, or of
    the first chunk of each prompt's first choice where it tells of the cache."""

    def __init__(self, *, constrained: bool, explains_cache: bool) -> None:
        self._relaxed_due = constrained
        self._explains_cache = explains_cache

    def whole(self, completions: Sequence[Completion]) -> Extension | UnsetType:
        """The extension of a whole answer. completions: the first one of each prompt."""
        told = [cache_answer(each) for each in completions] if self._explains_cache else []
        caches = [each for each in told if each is not UNSET]
        cache = caches[0] if len(caches) == 1 else caches or UNSET
        return self._next(completions[0].relaxed, cache)

    def of_chunk(self, chunk: TextChunk, choice: int) -> Extension | UnsetType:
        """The extension that comes with this chunk of a stream, of the choice of this number, where one does."""
        cache = cache_answer(chunk) if self._explains_cache else UNSET
        return self._next(chunk.relaxed, cache, is_first=choice == 0)

    def _next(
        self,
        relaxed: Iterable[Unenforced],
        cache: CacheAnswer | list[CacheAnswer] | UnsetType,
        *,
        is_first: bool = True,
    ) -> Extension | UnsetType:
        due = self._relaxed_due and is_first
        self._relaxed_due = self._relaxed_due and not is_first
        if not due and cache is UNSET:
            return UNSET
        return Extension(relaxed_of(relaxed) if due else UNSET, cache)


def cache_answer(told: TextChunk | Completion) -> CacheAnswer | UnsetType:
    """What a first chunk, or a first completion, tells of the cache."""
    report = told.cache
    if report is None:
        return UNSET
    return CacheAnswer(
        cached_tokens=told.cached_tokens,
        position=report.position,
        reason=report.reason,
        message=None if report.message is None else MessagePlace(report.message, report.role),
        character=report.character,
        cached_text=report.cached_text,
        prompt_text=report.prompt_text,
        moved_lines=[Moved(each.rule, each.message, each.to, each.line) for each in report.moved],
    )


def relaxed_of(relaxed: Iterable[Unenforced]) -> list[Relaxed]:
    return [Relaxed(each.keyword, each.pointer, each.reason) for each in relaxed]


def prompt_token_ids(told: TextChunk | Completion) -> list[int] | UnsetType:
    """Those that a first chunk, or a first completion, has."""
    return UNSET if told.prompt_ids is None else told.prompt_ids
