"""The backend for OpenAI's API, chat and completions, and for every server that speaks it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import BackendError, ProgramMisuse, Unsupported
from ..history import History, messages_of
from ..ir import Gen, GenOptions, Role, Select
from ..words.choices import Scored, ScoredToken
from .base import Backend, Completed, Emit, Judged, Sample, TokenCounts, refuse_options
from .http import HttpClient
from .native import patiently

OPENAI_URL = "https://api.openai.com/v1"
_COMMON = {
    "max_tokens",
    "stop",
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "n",
    "seed",
    "logprobs",
}
_CHAT_OPTIONS = frozenset({*_COMMON, "json_schema"})
_TEXT_OPTIONS = frozenset(_COMMON)


class OpenAI(Backend):
    """A model behind OpenAI's API. States are sent as text, so that prefixes are shared as far as the server does it.

    A chat model sees the messages of a state: a `gen` must be the first thing in an assistant's message, and `select`,
    regex and ebnf are refused. A completions model sees a state without roles; it selects by scoring each choice with
    `echo` and `logprobs`, which not every server can do.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = OPENAI_URL,
        api_key: str | None = None,
        chat: bool | None = None,
        timeout: float = 600.0,
    ) -> None:
        """api_key: the environment's OPENAI_API_KEY unless given. chat: False for the completions endpoint; None means
        that "instruct" models of OpenAI's own get it. timeout: seconds without a byte after which the server counts as
        gone. Raises ProgramMisuse where OpenAI's own address is used without a key.
        """
        key = api_key or os.environ.get("OPENAI_API_KEY")
        if key is None and base_url == OPENAI_URL:
            raise ProgramMisuse("OpenAI's API needs a key: give api_key=…, or set OPENAI_API_KEY.")
        self._http = HttpClient(base_url, {"Authorization": f"Bearer {key}"} if key else None, timeout)
        self.model = model
        self.chat = not (base_url == OPENAI_URL and model.endswith("-instruct")) if chat is None else chat
        self.name = f"{model} at {self._http.base_url}"
        # OpenAI's newer models know only the newer name, other servers often only the older one.
        self._max_tokens = "max_completion_tokens" if self.chat and base_url == OPENAI_URL else "max_tokens"

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()

    def check_gen(self, gen: Gen, options: GenOptions, role: Role | None, begun: bool) -> None:
        refuse_options(self.name, options, _CHAT_OPTIONS if self.chat else _TEXT_OPTIONS, self._elsewhere)
        if not self.chat:
            _refuse_role(self.name, role)
        elif role != "assistant" or begun:
            text = "a gen must be the first thing in an assistant's message"
            raise Unsupported(f"{self.name} is a chat model, which cannot go on with a text; {text}.{self._elsewhere}")

    def check_select(self, select: Select, role: Role | None) -> None:
        if self.chat:
            text = "is a chat model, which cannot select: its API scores no given text"
            raise Unsupported(f"{self.name} {text}.{self._elsewhere}")
        if select.method == "unconditional_likelihood_normalized":
            raise Unsupported(f"{self.name} cannot score a text without a prompt; use another choices_method.")
        _refuse_role(self.name, role)

    async def generate(self, history: History, options: GenOptions, emit: Emit | None) -> Completed:
        body = {**self._prompt(history), **self._options(options)}
        path = "/chat/completions" if self.chat else "/completions"
        if emit is None:
            answer = msgspec.json.decode(await patiently(lambda: self._http.post(path, body)))
        else:
            answer = await patiently(lambda: self._streamed(path, body, emit))
        samples = [_sample(choice) for choice in sorted(answer["choices"], key=lambda each: each["index"])]
        if not samples:
            raise BackendError(f"{self.name} gave no choices.")
        return Completed(samples, _usage(answer.get("usage")))

    async def judge(self, history: History, choices: Sequence[str], *, unconditional: bool) -> Judged:
        prompt = self._prompt(history)["prompt"]
        body = {"model": self.model, "prompt": [prompt + choice for choice in choices], "echo": True}
        body |= {"max_tokens": 0, "logprobs": 0, "temperature": 0.0}
        answer = msgspec.json.decode(await patiently(lambda: self._http.post("/completions", body)))
        found = sorted(answer["choices"], key=lambda each: each["index"])
        if len(found) != len(choices) or any(not each.get("logprobs") for each in found):
            raise BackendError(f"{self.name} cannot score: it ignored echo or logprobs.")
        scored = [_scored(each["logprobs"], len(prompt), self.name) for each in found]
        return Judged(scored, _usage(answer.get("usage")))

    @property
    def _elsewhere(self) -> str:
        """Where what this API lacks can be had, if the server is one of ours."""
        address = self._http.base_url
        if address == OPENAI_URL:
            return ""
        return f' If this is a Sapwood server, use RuntimeEndpoint("{address.removesuffix("/v1")}"), which can.'

    def _prompt(self, history: History) -> dict[str, Any]:
        messages, outside = messages_of(history)
        if not self.chat:
            return {"model": self.model, "prompt": outside}
        if outside.strip():
            text = "is a chat model; it has no place for text outside of messages"
            raise Unsupported(f"{self.name} {text}.{self._elsewhere}")
        shown = [{"role": each.role, "content": each.content} for each in messages if each.closed]
        return {"model": self.model, "messages": shown}

    def _options(self, options: GenOptions) -> dict[str, Any]:
        given = options.given()
        if "max_tokens" in given:
            given[self._max_tokens] = given.pop("max_tokens")
        if self.chat and "logprobs" in given:
            given["top_logprobs"], given["logprobs"] = given["logprobs"], True
        if "json_schema" in given:
            schema = {"name": "answer", "schema": given.pop("json_schema"), "strict": True}
            given["response_format"] = {"type": "json_schema", "json_schema": schema}
        return given

    async def _streamed(self, path: str, body: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """The answer put together from its events, in the form that one which is not streamed has."""
        choices: dict[int, dict[str, Any]] = {}
        usage = None
        async for data in self._http.events(path, {**body, "stream": True, "stream_options": {"include_usage": True}}):
            event = msgspec.json.decode(data)
            usage = event.get("usage") or usage
            for part in event["choices"]:
                whole = choices.setdefault(part["index"], {"index": part["index"], "text": "", "finish_reason": None})
                text = (part.get("delta", {}).get("content") if self.chat else part.get("text")) or ""
                whole["text"] += text
                whole["finish_reason"] = part.get("finish_reason") or whole["finish_reason"]
                whole["logprobs"] = _joined(whole.get("logprobs"), part.get("logprobs"))
                if text and part["index"] == 0:
                    emit(text)
        if not choices or any(each["finish_reason"] is None for each in choices.values()):
            raise BackendError(f"{self.name} ended a stream before its completion was.")
        return {"choices": list(choices.values()), "usage": usage}


def _refuse_role(name: str, role: Role | None) -> None:
    if role is not None:
        raise Unsupported(f"{name} completes text; it knows no roles, so {role} cannot be one.")


def _sample(choice: dict[str, Any]) -> Sample:
    message = choice.get("message") or {}
    text = (message.get("content") or "") if message else choice["text"]
    thought = message.get("reasoning_content") or message.get("reasoning") or ""  # servers call it one or the other
    runs, logprobs = (text,) if text else (), _logprobs(choice.get("logprobs"))
    return Sample(text, runs, choice.get("finish_reason") or "", logprobs, thought if isinstance(thought, str) else "")


def _logprobs(found: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """Both of the API's forms in the form of `Sample.logprobs`."""
    if not found:
        return None
    if "content" in found:
        return [
            {"token_id": None, "text": each["token"], "logprob": each["logprob"], "top": _top(each["top_logprobs"])}
            for each in found["content"] or []
        ]
    tops = found.get("top_logprobs") or [None] * len(found["tokens"])
    return [
        {"token_id": None, "text": text, "logprob": logprob, "top": _top(top)}
        for text, logprob, top in zip(found["tokens"], found["token_logprobs"], tops)
    ]


def _top(top: Any) -> list[dict[str, Any]]:
    if isinstance(top, dict):
        return [{"token_id": None, "text": text, "logprob": value} for text, value in top.items()]
    return [{"token_id": None, "text": each["token"], "logprob": each["logprob"]} for each in top or []]


def _joined(one: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    """Lists of the same name one after the other."""
    if not one or not more:
        return one or more
    return {name: [*values, *(more.get(name) or [])] for name, values in one.items() if isinstance(values, list)}


def _scored(logprobs: dict[str, Any], prompt_length: int, name: str) -> Scored:
    """The tokens that reach beyond the prompt's characters."""
    offsets = logprobs["text_offset"]
    ends = [*offsets[1:], None]
    first = next((i for i, end in enumerate(ends) if end is None or end > prompt_length), 0)
    tokens, values = logprobs["tokens"][first:], logprobs["token_logprobs"][first:]
    if None in values:
        raise BackendError(f"{name} cannot score the first token of a text; put some text before the choices.")
    return Scored(tuple(ScoredToken(None, text, value) for text, value in zip(tokens, values)))


def _usage(usage: dict[str, Any] | None) -> TokenCounts:
    if not usage:
        return TokenCounts()
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return TokenCounts(usage.get("prompt_tokens", 0), cached, usage.get("completion_tokens", 0))
