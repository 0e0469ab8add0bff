"""From the tokens of one sample to the text its caller sees: detokenizing, stop strings, texts of log-probabilities.

Joined, the texts of a sample's chunks are its completion; text once given out is never taken back.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...constrained.spec import Unenforced
from ...runtime.records import TopLogprobs
from ...runtime.text.detokenizer import Detokenizer, StopMatcher
from ...runtime.text.tokenizers.base import Tokenizer
from ...runtime.wanted import HiddenStates, PromptLogprobs
from ..wire.answers import Alternative, Finish, TextChunk, TokenChunk, TokenLogprob, ToolCallPiece
from ..wire.requests import Submit
from .prompt_encoding import Sequence
from .reasoning_output import ReasoningOutput
from .tool_calling import CallOutput

_NO_TOP = TopLogprobs([], [])


class SampleOutput:
    """One open sample. Feed it the scheduler's chunks in order, until `finished`.

    A token that ends the completion (the model's own end token, or one of `stop_token_ids`) counts as a token of it but
    has no text, unless `include_stop`. Stop strings are looked for in the text after the first `min_tokens` tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        submit: Submit,
        index: int,
        sequence: Sequence,
        prompt_text: str,
        calls: CallOutput | None = None,
        relaxed: Iterable[Unenforced] = (),
        reasoning: ReasoningOutput | None = None,
    ) -> None:
        """calls: where tools may be called. relaxed: what the first chunk is to say of the constraint. reasoning:
        where the completion may think."""
        self._tokenizer = tokenizer
        self._submit = submit
        self._index = index
        self._sequence = sequence
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=submit.skip_special_tokens,
            stand_ins=calls.stand_ins if calls is not None else {},
        )
        self._matcher = StopMatcher(submit.stop)
        self._pending_text = prompt_text
        self._calls = calls
        self._reasoning = reasoning
        self._relaxed = list(relaxed)
        self._prompt_logprobs_due = sequence.wanted is not None and sequence.wanted.kind == "logprobs"
        self._prompt_ids = sequence.token_ids if submit.tells_prompt and index == 0 else None
        self._count = 0
        self.finished = False

    def take(self, chunk: TokenChunk) -> TextChunk:
        """The text that these tokens give. Tokens after a stop string are dropped."""
        text, self._pending_text = self._pending_text, ""
        finish, taken = None, 0
        for token_id in chunk.token_ids:
            taken += 1
            self._count += 1
            if self._ends_without_text(token_id, taken, chunk):
                break
            shown = self._reasoning.shown if self._reasoning is not None else ()
            emitted, finish = self._push(self._detokenizer.push([token_id], shown))
            text += emitted
            if finish is not None:
                break
        if finish is None and chunk.finish is not None:
            emitted, finish = self._end(chunk.finish)
            text += emitted
        pieces: list[ToolCallPiece] = []
        reasoning = self._reasoning.take() if self._reasoning is not None else ""
        if self._calls is not None:
            text, pieces, finish = self._calls.take(text, finish)
            reasoning += self._calls.reasoning  # of completions in channels
        self.finished = finish is not None
        relaxed, self._relaxed = self._relaxed, []
        prompt_ids, self._prompt_ids = self._prompt_ids, None
        return TextChunk(
            request_id=chunk.request_id,
            index=self._index,
            text=text,
            token_ids=chunk.token_ids[:taken],
            prompt_tokens=len(self._sequence.token_ids),
            cached_tokens=chunk.cached_tokens,
            completion_tokens=self._count,
            logprobs=[
                self._token_logprob(token_id, logprob, top)
                for token_id, logprob, top in zip(chunk.token_ids[:taken], chunk.logprobs, chunk.top)
            ],
            prompt_logprobs=self._prompt_logprobs(chunk),
            finish=finish,
            effort=chunk.effort if finish is not None else None,
            relaxed=relaxed,
            tool_calls=pieces,
            hidden=chunk.prompt if isinstance(chunk.prompt, HiddenStates) else None,
            reasoning=reasoning,
            reasoning_tokens=self._reasoning.tokens if self._reasoning is not None else 0,
            prompt_ids=prompt_ids,
        )

    def _ends_without_text(self, token_id: int, taken: int, chunk: TokenChunk) -> bool:
        is_end = chunk.finish is not None and taken == len(chunk.token_ids) and chunk.finish.matched == token_id
        return is_end and not self._submit.include_stop

    def _push(self, text: str) -> tuple[str, Finish | None]:
        if self._reasoning is not None:
            text = self._reasoning.push(text, self._count)
        return self._match(text)

    def _match(self, text: str) -> tuple[str, Finish | None]:
        """The text of the answer up to a stop string."""
        if self._count <= self._submit.sampling.min_tokens:
            return text, None
        emitted, matched = self._matcher.push(text)
        if matched is None:
            return emitted, None
        return emitted + (matched if self._submit.include_stop else ""), Finish("stop", matched=matched)

    def _end(self, finish: Finish) -> tuple[str, Finish]:
        """Let out what was held back: bytes of an unfinished character, and the possible start of a stop string."""
        text, stopped = self._push(self._detokenizer.flush())
        if self._reasoning is not None and stopped is None:
            rest, stopped = self._match(self._reasoning.flush())
            text += rest
        return (text, stopped) if stopped is not None else (text + self._matcher.flush(), finish)

    def _prompt_logprobs(self, chunk: TokenChunk) -> list[TokenLogprob] | None:
        """Sent once: with the answer, or with the first chunk where the wanted span has no position that has one."""
        ids, wanted = self._sequence.token_ids, self._sequence.wanted
        if not self._prompt_logprobs_due or wanted is None:
            return None
        answer = chunk.prompt if isinstance(chunk.prompt, PromptLogprobs) else None
        if answer is None and max(1, wanted.start) < len(ids):
            return None
        self._prompt_logprobs_due = False
        values: list[float | None] = [None] if wanted.start == 0 else []
        tops = [_NO_TOP] if wanted.start == 0 else []
        if answer is not None:
            values.extend(answer.logprobs)
            tops.extend(answer.top)
        return [self._token_logprob(*each) for each in zip(ids[wanted.start :], values, tops)]

    def _token_logprob(self, token_id: int, logprob: float | None, top: TopLogprobs) -> TokenLogprob:
        others = [Alternative(i, *self._spell(i), value) for i, value in zip(top.ids, top.logprobs)]
        return TokenLogprob(token_id, *self._spell(token_id), logprob, others)

    def _spell(self, token_id: int) -> tuple[str, bytes]:
        data = self._tokenizer.token_bytes(token_id)
        return data.decode("utf-8", "replace"), data
