"""Tokens for text that a grammar forces: the ones which the model's tokenizer gives for it in its context.

Nothing is emitted whose end could still be joined to what follows: canonical tokens are what the model was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..engines.base import Matcher
from ..vocabulary import Vocabulary
from .seams import TAIL_TOKENS, Seams

CONTEXT_TOKENS = 4  # how many tokens before the sampled one the tokenizer sees
FORCED_BYTES = 256  # how much forced text is looked at together


class JumpForward:
    """Finds forced tokens for all the completions of a model."""

    def __init__(self, vocabulary: Vocabulary, max_forced: int) -> None:
        """max_forced: how many forced tokens may come with a sampled one."""
        self._vocabulary = vocabulary
        self._seams = Seams(vocabulary)
        self._max_tokens = 1 + max_forced

    def extend(self, matcher: Matcher, before: Sequence[int], sampled: int) -> list[int]:
        """What stands in place of the sampled token: itself, or the tokens of its text and the text forced after it.

        matcher: has just accepted `sampled`, and on return has accepted what is returned.
        before: the completion's tokens before the sampled one.
        """
        forced = matcher.forced()
        if not forced:
            return [sampled]
        own = self._vocabulary.token_bytes[sampled]
        if not own:  # a control token: nothing is joined to it
            return [sampled]
        before = self._since_control(before)
        token_ids = self._canonical(before, own + forced[:FORCED_BYTES])
        if not token_ids or not _replace(matcher, [sampled], token_ids):
            return [sampled]
        tail = [*before[-TAIL_TOKENS:], *token_ids]
        kept = len(token_ids) - self._unstable(matcher, tail, is_cut=len(forced) > FORCED_BYTES)
        kept = min(kept, self._max_tokens)
        while kept > 0 and _unfinished(self._vocabulary.spell(tail[: len(tail) - len(token_ids) + kept])):
            kept -= 1
        if kept <= 0 or len(self._vocabulary.spell(token_ids[:kept])) < len(own):
            _replace(matcher, token_ids, [sampled])
            return [sampled]
        matcher.rollback(len(token_ids) - kept)
        return token_ids[:kept]

    def _canonical(self, before: Sequence[int], data: bytes) -> list[int]:
        """The tokens of `data`, but for an unfinished character at its end, as they come after `before`.

        [] where the tokenizer does not spell it so, or would join its start to what stands before.
        """
        context = self._context(before)
        whole = context + data
        try:
            text = whole[: len(whole) - _unfinished(whole)].decode("utf-8")
        except UnicodeDecodeError:
            return []
        token_ids = self._vocabulary.encode(text)
        if self._vocabulary.spell(token_ids) != text.encode("utf-8"):
            return []
        skipped = index = 0
        while skipped < len(context) and index < len(token_ids):
            skipped += len(self._vocabulary.token_bytes[token_ids[index]])
            index += 1
        if skipped == len(context):
            return token_ids[index:]
        return self._canonical([], data) if context else []

    def _since_control(self, before: Sequence[int]) -> Sequence[int]:
        """The last tokens after any control token: text is not joined across one."""
        near = before[-max(CONTEXT_TOKENS, TAIL_TOKENS) :]
        control = [i for i, token_id in enumerate(near) if token_id in self._vocabulary.control_ids]
        return near[control[-1] + 1 :] if control else near

    def _context(self, before: Sequence[int]) -> bytes:
        """The bytes of the last tokens of the completion, from the first one that begins a character."""
        spellings = [self._vocabulary.token_bytes[token_id] for token_id in before[-CONTEXT_TOKENS:]]
        begins = next((i for i, data in enumerate(spellings) if data and not _is_inner(data[0])), len(spellings))
        return b"".join(spellings[begins:])

    def _unstable(self, matcher: Matcher, token_ids: list[int], is_cut: bool) -> int:
        """How many of the last tokens may turn out differently, by what may follow where the matcher stands.

        is_cut: what follows is forced as well, though the matcher does not stand there yet.
        """
        if matcher.is_over:
            return 0
        unstable = self._seams.unstable(tuple(token_ids[-TAIL_TOKENS:]))
        if not unstable or is_cut:
            return max(unstable.values(), default=0)
        mask = matcher.mask()
        return max((n for byte, n in unstable.items() if self._vocabulary.has_first_byte(mask, byte)), default=0)


def _replace(matcher: Matcher, old: list[int], new: list[int]) -> bool:
    """Moves from the end of `old` to the end of `new`; where the grammar does not allow that, nothing has changed."""
    matcher.rollback(len(old))
    for count, token_id in enumerate(new):
        if not matcher.accept(token_id):
            matcher.rollback(count)
            for each in old:
                matcher.accept(each)
            return False
    return True


def _is_inner(byte: int) -> bool:
    """Whether it continues a character of UTF-8."""
    return byte & 0xC0 == 0x80


def _unfinished(data: bytes) -> int:
    """The length of the unfinished character at the end of `data`; 0 where there is none."""
    for size in range(1, min(4, len(data) + 1)):
        lead = data[-size]
        if not _is_inner(lead):
            needed = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return size if size < needed else 0
    return 0
