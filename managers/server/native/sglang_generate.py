"""/generate as SGLang has it: a body that says `text` or `input_ids` is read, and answered, in that form.

A batch, or n above 1, is answered by a list. It must never say what Sapwood's own form says otherwise: a body with
`prompt` or `messages` is of that.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from aiohttp import web

from ....runtime.declaration import with_nulls
from ...front.generation import Completion
from ...front.requests.bodies import decode_tolerant, respelled
from ...front.requests.params import to_submit
from ...front.requests.request_fields import CompletionFields, GenerateRequest
from ...front.requests.tolerated import TOLERATED, Tolerated
from ...wire.answers import Finish, TextChunk, TokenLogprob
from ...wire.errors import InvalidRequest, Path
from ...wire.requests import Submit
from ..events import stream_events
from ..reading import understand
from ..responses import json_response
from ..server_state import STATE, ServerState
from ..work import Work

_Sampling = with_nulls("_Sampling", CompletionFields, lambda _: True)


class SglangSampling(_Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`sampling_params`: the fields of a completion, also by SGLang's names (max_new_tokens, sampling_seed …)."""

    tolerated: ClassVar[Mapping[str, Tolerated]] = TOLERATED


class SglangBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """text or input_ids: one prompt, or several. sampling_params and rid: one for all, or one for each."""

    tolerated: ClassVar[Mapping[str, Tolerated]] = TOLERATED

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    model: str | None = None

    @property
    def is_batch(self) -> bool:
        given = self.input_ids if self.text is None else self.text
        return isinstance(given, list) and (self.text is not None or (bool(given) and isinstance(given[0], list)))

    def requests(self) -> list[GenerateRequest]:
        """One native request for each prompt. Raises InvalidRequest naming the field."""
        if (self.text is None) == (self.input_ids is None):
            raise InvalidRequest("Give one of text and input_ids.", "text")
        given: Any = self.input_ids if self.text is None else self.text
        prompts = given if self.is_batch else [given]
        if not prompts:
            raise InvalidRequest.about(("text" if self.input_ids is None else "input_ids",), "is an empty list.")
        rid = self.rid if self.rid is not None else f"gen-{uuid.uuid4().hex}"
        rids = [f"{rid}_{i}" if self.is_batch else rid for i in range(len(prompts))] if isinstance(rid, str) else rid
        params = self.sampling_params if isinstance(self.sampling_params, list) else [self.sampling_params or {}]
        params = params * len(prompts) if len(params) == 1 else params
        for name, items in (("rid", rids), ("sampling_params", params)):
            if len(items) != len(prompts):
                raise InvalidRequest.about((name,), f"has {len(items)} items for {len(prompts)} prompts.")
        return [self._request(prompt, rids[i], params[i]) for i, prompt in enumerate(prompts)]

    def _request(self, prompt: Any, rid: str, params: dict[str, Any]) -> GenerateRequest:
        try:
            sampling = decode_tolerant(msgspec.json.encode(params), SglangSampling)
        except InvalidRequest as error:
            raise error.renamed(lambda path: ("sampling_params", *path)) from None
        fields = {name: getattr(sampling.body, name) for name in SglangSampling.__struct_fields__}
        fields = {name: value for name, value in fields.items() if value is not None}
        salt = self.cache_salt or self.extra_key
        beside = {"cache_salt": salt, "priority": self.priority}
        fields |= {name: value for name, value in beside.items() if value is not None}
        if self.return_logprob:
            fields["logprobs"] = self.top_logprobs_num or 0
            if self.logprob_start_len is not None and self.logprob_start_len >= 0:
                fields |= {"prompt_logprobs": fields["logprobs"], "logprob_start": self.logprob_start_len}
        try:
            made = msgspec.convert({"prompt": prompt, "request_id": rid, **fields}, GenerateRequest)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"input_ids: {error}.", "input_ids") from None
        return made


class _Spelling(msgspec.Struct):
    """Which words a body uses; what it says with them is not looked at."""

    text: msgspec.Raw = msgspec.Raw()
    input_ids: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()


def asks_as_sglang(data: bytes) -> bool:
    """Whether a body of /generate is in SGLang's form."""
    try:
        said = msgspec.json.decode(data, type=_Spelling)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return bool(bytes(said.text) or bytes(said.input_ids)) and not (bytes(said.prompt) or bytes(said.messages))


async def generate_as_sglang(request: web.Request, data: bytes) -> web.StreamResponse:
    """POST /generate with `text` or `input_ids`."""
    state = request.app[STATE]
    began = time.perf_counter()

    def understood(body: SglangBody) -> tuple[SglangBody, list[Submit]]:
        state.check_model(body.model)
        return body, _submits(state, body)

    body, submits = await understand(request, SglangBody, understood, data)
    samples = submits[0].n
    shown = _Shown(body, submits, began)
    async with Work(state, submits[0].request_id, submits, "generate", lambda e, i: _renamed(e, body, i)) as work:
        if body.stream:
            return await stream_events(request, work, shown.events)
        found = await work.completions()
    answers = [shown.whole(i, found[i][k]) for k in range(samples) for i in range(len(submits))]
    return json_response(answers if body.is_batch or samples > 1 else answers[0], work.request_id)


def _submits(state: ServerState, body: SglangBody) -> list[Submit]:
    info, made = state.front.info, []
    for i, each in enumerate(body.requests()):
        try:
            made.append(to_submit(each, vocab_size=info.model.vocab_size, defaults=info.sampling))
        except InvalidRequest as error:
            raise _renamed(error, body, i) from None
    if len({submit.n for submit in made}) > 1:
        raise InvalidRequest.about(("sampling_params",), "must have the same n for all prompts.")
    capacity = state.front.config.capacity
    if sum(submit.n for submit in made) > capacity:
        raise InvalidRequest.about(("text",), f"asks for more sequences than the {capacity} that can be open at once.")
    return made


_NAMES = {
    "request_id": "rid",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "logprob_start": "logprob_start_len",
}
_BESIDE = ("rid", "top_logprobs_num", "logprob_start_len", "cache_salt", "priority")


def _renamed(error: InvalidRequest, body: SglangBody, item: int) -> InvalidRequest:
    def name(path: Path) -> Path:
        if path[0] == "prompt":
            field = "input_ids" if body.text is None else "text"
            return (field, item) if body.is_batch else (field,)
        own = _NAMES.get(str(path[0]), str(path[0]))
        return (own, *path[1:]) if own in _BESIDE else ("sampling_params", own, *path[1:])

    return respelled(error, {}).renamed(name)


class _Shown:
    """Answers, whole or growing, in SGLang's form."""

    def __init__(self, body: SglangBody, submits: list[Submit], began: float) -> None:
        self._body = body
        self._submits = submits
        self._began = began
        self._so_far: dict[tuple[int, int], tuple[str, list[int], list[TokenLogprob], list[TokenLogprob]]] = {}

    def whole(self, number: int, done: Completion) -> dict[str, Any]:
        counts = (done.prompt_tokens, done.completion_tokens, done.cached_tokens)
        return self._answer(
            number, done.text, done.token_ids, done.finish, counts, done.logprobs or [], done.prompt_logprobs or []
        )

    def events(self, number: int, chunk: TextChunk) -> list[bytes]:
        """One event: the whole text so far, as SGLang's streams have it."""
        text, ids, logprobs, of_prompt = self._so_far.setdefault((number, chunk.index), ("", [], [], []))
        text += chunk.text
        ids.extend(chunk.token_ids)
        logprobs.extend(chunk.logprobs)
        of_prompt.extend(chunk.prompt_logprobs or [])
        self._so_far[number, chunk.index] = (text, ids, logprobs, of_prompt)
        counts = (chunk.prompt_tokens, chunk.completion_tokens, chunk.cached_tokens)
        answer = self._answer(number, text, ids, chunk.finish, counts, logprobs, of_prompt)
        if self._body.is_batch or self._submits[0].n > 1:
            answer["index"] = chunk.index * len(self._submits) + number
        return [msgspec.json.encode(answer)]

    def _answer(
        self,
        number: int,
        text: str,
        token_ids: list[int],
        finish: Finish | None,
        counts: tuple[int, int, int],
        logprobs: list[TokenLogprob],
        of_prompt: list[TokenLogprob],
    ) -> dict[str, Any]:
        prompt, completion, cached = counts
        meta: dict[str, Any] = {
            "id": self._submits[number].request_id,
            "finish_reason": None if finish is None else _reason(finish, completion),
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "cached_tokens": cached,
            "e2e_latency": time.perf_counter() - self._began,
        }
        if self._body.return_logprob:
            for side, tokens in (("input", of_prompt), ("output", logprobs)):
                meta[f"{side}_token_logprobs"] = [self._triple(each) for each in tokens]
                if self._body.top_logprobs_num:
                    meta[f"{side}_top_logprobs"] = [[self._triple(top) for top in each.top] for each in tokens]
        return {"text": text, "output_ids": token_ids, "meta_info": meta}

    def _triple(self, token: Any) -> tuple[float | None, int, str | None]:
        return token.logprob, token.token_id, token.text if self._body.return_text_in_logprobs else None


def _reason(finish: Finish, completion_tokens: int) -> dict[str, Any]:
    if finish.reason == "length":
        return {"type": "length", "length": completion_tokens}
    return {"type": "stop", "matched": finish.matched} if finish.reason == "stop" else {"type": finish.reason}
