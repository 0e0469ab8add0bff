"""From a submitted request to the token sequences that the scheduler computes. Refuses what cannot be computed.

It must not keep anything between requests: a request is a function of its message, the tokenizer and the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from ...runtime.errors import TemplateError
from ...runtime.records import pack_ids, unpack_ids
from ...runtime.text.chat.prompts import ChatPrompt, ChatPrompts
from ...runtime.text.tokenizers.base import Tokenizer
from ...runtime.wanted import Wanted
from ..wire.errors import InvalidRequest, Path, PromptTooLong
from ..wire.requests import Chat, Submit, TokenizedRequest
from .known_tokens import KnownTokens
from .prompt_text import PromptText, characters_begun
from .reasoning_output import ReasoningStart, reasoning_start, template_kwargs

_MASK = 2**64 - 1
_ANY_LENGTH = 2**31


@dataclass(frozen=True)
class Sequence:
    """One sequence to compute. wanted: of its positions; a log-probability of position 0, which has none, is reported
    as such."""

    token_ids: list[int]
    wanted: Wanted | None


@dataclass(frozen=True)
class Encoded:
    """A request in tokens: `sequences` by sample index, and the prompt's own text for `echo` ("" without). first: the
    first one, as text. reasoning: how the completions begin, where they may think first."""

    submit: Submit
    sequences: list[Sequence]
    requests: list[TokenizedRequest]
    prompt_text: str
    first: PromptText
    reasoning: ReasoningStart | None = None


class PromptEncoder:
    """Encodes requests for one model. For one thread: tokenizers are not safe to share."""

    def __init__(self, tokenizer: Tokenizer, prompts: ChatPrompts | None) -> None:
        """prompts: made with the model's chat templates; None where it has none."""
        self._tokenizer = tokenizer
        self._prompts = prompts
        pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self._characters = characters_begun(pieces)
        self._longest_token = max(1, *map(len, pieces))
        self._known = KnownTokens(tokenizer, pieces)

    def encode(self, submit: Submit, max_context: int) -> Encoded:
        """The request's sequences, each shorter than `max_context` tokens. Raises InvalidRequest naming the field."""
        field = "messages" if submit.chat is not None else "prompt"
        text = _characters(submit)
        at_least = text // self._longest_token + sum(map(len, _given_ids(submit)))
        if at_least >= max_context:  # what is far too long is refused unread: it would hold up the others'
            raise PromptTooLong.of(
                f"at least {at_least}" if text or submit.chat is not None else str(at_least), max_context, (field,)
            )
        fragments, reasoning = None, None
        if submit.chat is not None:
            rendered = self._fitting_prompt(submit.chat, max_context)
            fragments, reasoning = rendered.fragments, reasoning_start(rendered, submit.chat)
            known = self._known.applied(fragments, submit.chat.known) if submit.chat.known else fragments
            prompt = self._tokenizer.encode_fragments(known)
        else:
            prompt = self._encode_runs(submit, submit.prompt or [[]])
            if not prompt and submit.score is not None:
                prompt = [self._start_id("is empty")]
        if not prompt:
            raise InvalidRequest.about((field,), "gives no tokens; at least one is needed.")
        if submit.score is None:
            _check_length(len(prompt), max_context, (field,))
            sequences = [Sequence(prompt, _wanted(submit, len(prompt)))] * submit.n
        else:
            sequences = self._continued(submit, prompt, max_context)
        prediction = self._prediction(submit, max_context)
        requests = [self._request(submit, i, each, max_context, prediction) for i, each in enumerate(sequences)]
        first = PromptText(self._tokenizer, self._characters, unpack_ids(requests[0].token_ids), fragments)
        text_before = self._prompt_text(submit) if submit.echo else ""
        return Encoded(submit, sequences, requests, text_before, first, reasoning)

    def render(self, chat: Chat) -> tuple[list[str | list[int]], str]:
        """A conversation as a prompt, text and ids of control tokens by turns, and as its text. Raises InvalidRequest.

        As a request's prompt it gives the same tokens as the conversation itself.
        """
        fragments = self._render_chat(chat).fragments
        prompt: list[str | list[int]] = []
        for is_text, neighbours in groupby(fragments, lambda fragment: isinstance(fragment, str)):
            run = list(neighbours)
            prompt.append("".join(cast(list[str], run)) if is_text else cast(list[int], run))
        text = "".join(f if isinstance(f, str) else self._tokenizer.token_text(f) for f in fragments)
        return prompt, text

    def _fitting_prompt(self, chat: Chat, max_context: int) -> ChatPrompt:
        prompt = self._render_chat(chat)
        at_least = sum(len(each) // self._longest_token if isinstance(each, str) else 1 for each in prompt.fragments)
        if at_least >= max_context:  # also what stands elsewhere than in the contents: in tools, in calls of them
            raise PromptTooLong.of(f"at least {at_least}", max_context, ("messages",))
        return prompt

    def _render_chat(self, chat: Chat) -> ChatPrompt:
        if self._prompts is None:
            raise InvalidRequest("This model has no chat template; send a prompt instead of messages.", "messages")
        try:
            return self._prompts.prompt(
                chat.messages,
                chat.tools,
                chat.add_generation_prompt,
                chat.continue_final_message,
                partial(template_kwargs, chat),
                allow_control=chat.allow_control_tokens,
            )
        except TemplateError as error:
            raise InvalidRequest(str(error), error.place or "messages") from None

    def _encode_runs(self, submit: Submit, runs: list[str | list[int]]) -> list[int]:
        """The runs as one sequence. BOS comes only before leading text."""
        add_bos = isinstance(runs[0], str) and self._tokenizer.adds_bos
        if len(runs) == 1 and isinstance(runs[0], str):
            return self._tokenizer.encode(runs[0], add_bos=add_bos, allow_control=submit.allow_control_tokens)
        fragments: list[str | int] = []
        for run in runs:
            if isinstance(run, list):
                fragments.extend(run)
            else:
                fragments.extend(self._tokenizer.split_control(run) if submit.allow_control_tokens else [run])
        bos_id = self._tokenizer.bos_id
        leading = [bos_id] if add_bos and bos_id is not None else []
        return leading + self._tokenizer.encode_fragments(fragments)

    def _continued(self, submit: Submit, prompt: list[int], max_context: int) -> list[Sequence]:
        """The prompt followed by each continuation. Where one changes the prompt's very first token, which then has to
        be scored and has nothing before it, all of them are scored whole, as without a prompt: what one of them says
        in place of the prompt's tokens cannot be compared with what others say after these."""
        assert submit.score is not None
        assert submit.wanted is not None
        found = [self._with_continuation(submit, prompt, i) for i in range(len(submit.score))]
        if any(start == 0 for _, start in found):
            start_id = self._start_id("has one token, which merges with a continuation")
            found = [([start_id, *token_ids], 1) for token_ids, _ in found]
        for i, (token_ids, _) in enumerate(found):
            _check_length(len(token_ids), max_context, ("continuations", i))
        return [Sequence(token_ids, replace(submit.wanted, start=start)) for token_ids, start in found]

    def _with_continuation(self, submit: Submit, prompt: list[int], index: int) -> tuple[list[int], int]:
        """The prompt followed by a continuation, and where that starts. Text after text is tokenized with it, since
        tokens may span both."""
        assert submit.score is not None
        assert submit.prompt is not None
        continuation = submit.score[index]
        last = submit.prompt[-1] if submit.prompt else []
        if not submit.prompt:
            whole = prompt + self._encode_runs(submit, [[], continuation])
        elif isinstance(continuation, list):
            whole = prompt + continuation
        elif isinstance(last, str):
            whole = self._encode_runs(submit, [*submit.prompt[:-1], last + continuation])
        else:
            whole = self._encode_runs(submit, [*submit.prompt, continuation])
        start = next((i for i, (a, b) in enumerate(zip(prompt, whole)) if a != b), min(len(prompt), len(whole)))
        if start >= len(whole):
            raise InvalidRequest.about(
                ("continuations", index), "adds no token to the prompt; there is nothing to score."
            )
        return whole, start

    def _start_id(self, why: str) -> int:
        """The token that stands for the start of a text. why: it is needed, for this prompt."""
        bos_id, ends = self._tokenizer.bos_id, self._tokenizer.eos_ids
        if bos_id is None and not ends:
            text = f"{why}, and this model has no token for the start of a text; give a longer prompt."
            raise InvalidRequest.about(("prompt",), text)
        return min(ends) if bos_id is None else bos_id

    def _prediction(self, submit: Submit, max_context: int) -> bytes:
        """As much of it as a completion can come to."""
        text = submit.prediction[: max_context * self._longest_token]
        return pack_ids(np.asarray(self._tokenizer.encode_fragments([text])[:max_context])) if text else b""

    def _request(
        self, submit: Submit, index: int, sequence: Sequence, max_context: int, prediction: bytes
    ) -> TokenizedRequest:
        sampling = submit.sampling
        room = max_context - len(sequence.token_ids)
        max_tokens = room if sampling.max_tokens < 0 else min(sampling.max_tokens, room)
        eos_ids = () if sampling.ignore_eos else self._tokenizer.eos_ids
        stop_ids = sorted({*eos_ids, *sampling.stop_token_ids})
        if sampling.min_tokens and len(stop_ids) >= self._tokenizer.vocab_size:
            sentence = [("stop_token_ids",), " holds every token, which leaves none for ", ("min_tokens",), "."]
            raise InvalidRequest(sentence, "stop_token_ids")
        wanted = sequence.wanted
        if wanted is not None:
            wanted = replace(wanted, start=max(wanted.start, wanted.lag))
        return TokenizedRequest(
            request_id=submit.request_id,
            index=index,
            token_ids=pack_ids(np.asarray(sequence.token_ids)),
            sampling=replace(sampling, max_tokens=max_tokens, seed=sample_seed(sampling.seed, index)),
            stop_ids=stop_ids,
            namespace=submit.namespace,
            priority=submit.priority,
            wanted=wanted if wanted is not None and wanted.start < len(sequence.token_ids) else None,
            prediction=prediction,
        )

    def _prompt_text(self, submit: Submit) -> str:
        runs = submit.prompt or []
        return "".join(run if isinstance(run, str) else self._text_of(run) for run in runs)

    def prompt_ids(self, submit: Submit) -> list[int]:
        """The tokens of a request's prompt, whatever its length. Text that is a control token's is that token."""
        texts = [run for run in submit.prompt or [] if run != []]
        if len(texts) == 1 and isinstance(texts[0], str):
            whole = self._tokenizer.split_control(texts[0])
            if len(whole) == 1 and isinstance(whole[0], int):
                return [whole[0]]
        return self.encode(submit, _ANY_LENGTH).sequences[0].token_ids

    def pieces(self, ids: list[int]) -> list[bytes]:
        """What each token adds to a text."""
        return [self._tokenizer.token_bytes(i) for i in ids]

    def _text_of(self, ids: list[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, ids)).decode("utf-8", "replace")


def _wanted(submit: Submit, length: int) -> Wanted | None:
    """What is wanted of a prompt of so many tokens."""
    wanted = submit.wanted
    if wanted is None:
        return None
    if wanted.start >= length:
        field = "logprob_start" if wanted.kind == "logprobs" else "start"
        raise InvalidRequest.about((field,), f"is {wanted.start}, but the prompt has {length} tokens.")
    return wanted if wanted.start >= 0 else replace(wanted, start=max(wanted.start + length, 0))


def sample_seed(seed: int, index: int) -> int:
    """The seed in [0, 2^63) of sample `index`: the request's own for the first, splitmix64 of both for the others."""
    if index == 0:
        return seed
    value = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) >> 1


def encoding_work(submit: Submit) -> int:
    """How much there is to encode, in bytes or so. A prompt is encoded anew with every continuation."""
    again = max(len(submit.score or ()) - 1, 0) * sum(len(run) for run in submit.prompt or ())
    return len(msgspec.msgpack.encode(submit)) + again


def rendering_work(chat: Chat) -> int:
    """How much there is to render, in bytes or so."""
    return len(msgspec.msgpack.encode(chat))


def _characters(submit: Submit) -> int:
    """How much text a request holds, in its largest sequence."""
    if submit.chat is not None:
        return sum(len(part.get("text", "")) for part in _content_parts(submit.chat))
    texts = [run for run in submit.prompt or [] if isinstance(run, str)]
    return sum(map(len, texts)) + max((len(each) for each in submit.score or [] if isinstance(each, str)), default=0)


def _given_ids(submit: Submit) -> list[list[int]]:
    if submit.chat is not None:
        return [part.get("token_ids", []) for part in _content_parts(submit.chat)]
    return [run for run in submit.prompt or [] if isinstance(run, list)]


def _content_parts(chat: Chat) -> list[dict[str, Any]]:
    contents = [message.get("content") for message in chat.messages]
    return [part for each in contents for part in (each if isinstance(each, list) else [{"text": each or ""}])]


def _check_length(length: int, max_context: int, path: Path) -> None:
    if length >= max_context:
        raise PromptTooLong.of(str(length), max_context, path)
