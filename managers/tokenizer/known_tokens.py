"""A conversation that goes on from an earlier one keeps its tokens: the prompt begins with exactly those that were
computed and generated then, also where its text would be tokenized otherwise.

It must never put known tokens where the chat template shows another text, but for two things: how it writes the calls
of tools, and white space around a completion, which it may strip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...runtime.records import unpack_ids
from ...runtime.text.tokenizers.base import Fragment, Tokenizer
from ..wire.requests import KnownTurn

_Run = bytes | int
_SPACES = b" \t\r\n"


@dataclass(frozen=True)
class _RunPlace:
    """Where in the rendered conversation: before byte `offset` of run number `run`."""

    run: int
    offset: int


class KnownTokens:
    """Finds known tokens in conversations as one tokenizer's model has them."""

    def __init__(self, tokenizer: Tokenizer, pieces: Sequence[bytes] | None = None) -> None:
        """pieces: the bytes of each token, where somebody has them at hand."""
        self._tokenizer = tokenizer
        self._pieces = pieces or [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        probe = tokenizer.encode_fragments(["a"])
        self._adds_space = b"".join(map(tokenizer.token_bytes, probe)) == b" a"

    def applied(self, fragments: Sequence[Fragment], turns: Sequence[KnownTurn]) -> list[Fragment]:
        """The rendered conversation with the longest part of its beginning that is known as ids."""
        runs: list[_Run] = [each if isinstance(each, int) else each.encode("utf-8", "replace") for each in fragments]
        ids: list[int] = []
        place = _RunPlace(0, 0)
        for turn in turns:
            prompt, completion = unpack_ids(turn.prompt).tolist(), unpack_ids(turn.completion).tolist()
            behind = self._whole(runs, place, prompt)
            if behind is None:
                places = self._walk(runs, place, prompt)
                taken = _last(places, lambda at: at.offset == 0 and at.run > 0 and isinstance(runs[at.run - 1], int))
                ids, place = [*ids, *prompt[:taken]], places[taken - 1] if taken else place
                break
            ids += prompt
            place = behind
            behind = self._whole(runs, place, completion)
            if behind is not None and _is_whole(runs, behind):
                ids += completion
                place = behind
                continue
            written = self._written_otherwise(runs, place, completion, turn)
            if written is None:
                places = self._walk(runs, place, completion)
                taken = _last(places, lambda at: _is_clean(runs, at))
                ids, place = ids + completion[:taken], places[taken - 1] if taken else place
                break
            kept, place = written
            ids += kept
        return [*ids, *_rest(fragments, runs, place)]

    def _whole(self, runs: Sequence[_Run], place: _RunPlace, ids: list[int]) -> _RunPlace | None:
        """The place behind all of these tokens, if they are there."""
        control, pieces = self._tokenizer.control_ids, self._pieces
        at: _RunPlace | None = place
        for is_control, neighbours in groupby(ids, control.__contains__):
            run = list(neighbours)
            straight = (
                None if is_control or at is None else _advanced(runs, at, b"".join([pieces[each] for each in run]))
            )
            if straight is None and at is not None:  # token by token, for ids that stand as they are and added spaces
                places = self._walk(runs, at, run)
                straight = places[-1] if len(places) == len(run) else None
            at = straight
        return at

    def _walk(self, runs: Sequence[_Run], place: _RunPlace, ids: Sequence[int]) -> list[_RunPlace]:
        """The places behind each of these tokens, as far as the conversation has them."""
        places: list[_RunPlace] = []
        for token_id in ids:
            following = self._behind(runs, place, token_id)
            if following is None:
                break
            places.append(following)
            place = following
        return places

    def _behind(self, runs: Sequence[_Run], place: _RunPlace, token_id: int) -> _RunPlace | None:
        if place.run >= len(runs):
            return None
        here = runs[place.run]
        if isinstance(here, int):
            return _RunPlace(place.run + 1, 0) if here == token_id else None
        if token_id in self._tokenizer.control_ids:
            return None
        data = self._pieces[token_id]
        starts = place.offset == 0 and (place.run == 0 or isinstance(runs[place.run - 1], int))
        if starts and self._adds_space and data.startswith(b" "):
            without = _advanced(runs, place, data[1:])
            if without is not None:
                return without
        return _advanced(runs, place, data)

    def _written_otherwise(
        self, runs: Sequence[_Run], place: _RunPlace, completion: list[int], turn: KnownTurn
    ) -> tuple[list[int], _RunPlace] | None:
        """The tokens to keep of a completion that the template writes in another way, and the place behind them."""
        ends = self._tokenizer.eos_ids
        end = next((i for i in range(place.run, len(runs)) if runs[i] in ends), None)
        if end is None:
            return None
        spell = self._pieces.__getitem__
        between = (spell(each) if isinstance(each, int) else each for each in runs[place.run : end])
        shown = b"".join(between)[place.offset :]
        has_end = bool(completion) and completion[-1] in ends
        kept = completion[:-1] if has_end else completion
        said = b"".join(map(spell, kept))
        if not (_holds(shown, turn.shows) if turn.shows else shown.strip(_SPACES) == said.strip(_SPACES)):
            return None
        if has_end and runs[end] == completion[-1]:
            return completion, _RunPlace(end + 1, 0)
        return kept, _RunPlace(end, 0)


def _advanced(runs: Sequence[_Run], place: _RunPlace, data: bytes) -> _RunPlace | None:
    """The place behind these bytes, if they are there; they may reach into the next text."""
    run, offset = place.run, place.offset
    while data:
        here = runs[run] if run < len(runs) else 0
        if isinstance(here, int):
            return None
        part = here[offset : offset + len(data)]
        if not data.startswith(part):
            return None
        data, offset = data[len(part) :], offset + len(part)
        if offset == len(here):
            run, offset = run + 1, 0
    return _RunPlace(run, offset)


def _holds(shown: bytes, parts: Sequence[str]) -> bool:
    """Whether a text has these parts, in this order."""
    at = 0
    for part in parts:
        data = part.encode("utf-8", "replace")
        found = shown.find(data, at)
        if found < 0:
            return False
        at = found + len(data)
    return True


def _last(places: Sequence[_RunPlace], holds: Callable[[_RunPlace], bool]) -> int:
    """How many tokens to take, so that `holds` for the place behind the last of them."""
    return next((i for i in range(len(places), 0, -1) if holds(places[i - 1])), 0)


def _is_whole(runs: Sequence[_Run], place: _RunPlace) -> bool:
    """Whether no character is divided there."""
    here = runs[place.run] if place.run < len(runs) else 0
    return isinstance(here, int) or here[place.offset] & 0xC0 != 0x80


def _is_clean(runs: Sequence[_Run], place: _RunPlace) -> bool:
    """Whether what follows there is tokenized as if it had stood alone: a word's beginning."""
    here = runs[place.run] if place.run < len(runs) else 0
    return isinstance(here, int) or place.offset == 0 or here[place.offset] in _SPACES


def _rest(fragments: Sequence[Fragment], runs: Sequence[_Run], place: _RunPlace) -> list[Fragment]:
    if place.run >= len(runs):
        return []
    here = runs[place.run]
    first = [fragments[place.run]] if isinstance(here, int) else [here[place.offset :].decode()]
    return [*first, *fragments[place.run + 1 :]]
