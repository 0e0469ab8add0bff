"""The bodies of the OpenAI endpoints and what they become: native requests, checked further by `front.requests.params`.

A field that asks for something Sapwood does not do is refused by its name; what asks for nothing that could be done
wrong is tolerated, and listed in the answer's header (`front.requests.tolerated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from ....runtime.declaration import Field, with_nulls
from ...front.requests.constraints import KINDS
from ...front.requests.params import MAX_NAME
from ...front.requests.request_fields import CompletionFields, GenerateRequest
from ...front.requests.tolerated import CHAT_TOLERATED, TEXT_TOLERATED, Tolerated
from ...wire.errors import InvalidRequest
from .response_format import FIELD, STRUCTURED, constraint_fields, structured_fields
from .thinking_bodies import ReasoningObject, ThinkingObject, thinking_fields, thinking_names

COMPLETION_MAX_TOKENS = 16  # OpenAI's own default for this endpoint
MAX_PROMPTS = 1024
MAX_TOP_LOGPROBS = 20

_MAX_TOKENS = Field("most tokens of a completion", elsewhere=("n_predict", "max_new_tokens"))
_BUDGETS = ("max_reasoning_tokens", "thinking_token_budget", "thinking_budget_tokens", "reasoning_budget")
_BUDGET = Field("most tokens of thinking", elsewhere=_BUDGETS)
_Declared = with_nulls("_Declared", CompletionFields, lambda field: field.openai)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """include_usage: one more chunk at the end, with no choices and the counts of the whole request."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class PredictedPart(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class Prediction(msgspec.Struct, forbid_unknown_fields=True):
    """What the answer is likely to say."""

    type: Literal["content"]
    content: str | list[PredictedPart]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class SharedFields(_Declared, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take: these fields, and all of a completion's that mean the same here, in OpenAI's bodies and
    in GenerateRequest. Null means what absent means. `user` is written to the log and has no other effect."""

    model: str | None = None
    max_tokens: Annotated[int | None, _MAX_TOKENS] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    request_id: Annotated[str | None, Field("the request's name", elsewhere=("rid",))] = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None

    def unused(self) -> list[str]:
        """Fields that are given and have no effect on the answer."""
        found = ["user"] if self.user is not None else []
        if self.top_p == 0:  # which is read as temperature 0
            found.append("top_p")
        if self.stream_options is not None and self.stream_options.include_obfuscation is not None:
            found.append("stream_options.include_obfuscation")
        return found

    @property
    def constrained(self) -> bool:
        """Whether something constrains the completion."""
        return bool(self.asked_format()[1]) or any(getattr(self, kind) not in (None, False) for kind in KINDS)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of counts. Raises InvalidRequest where there is no stream."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream to be true.", "stream_options")
        return bool(self.stream_options and self.stream_options.include_usage)

    def requests(self) -> list[GenerateRequest]:
        """One native request for each prompt. Raises InvalidRequest naming the field."""
        raise NotImplementedError

    def names(self) -> dict[str, str]:
        """Fields of GenerateRequest that have another name in this body. Only names change, never what a user wrote."""
        place, fields = self.asked_format()
        return dict.fromkeys(fields.keys() & {*KINDS}, place)

    def asked_format(self) -> tuple[str, dict[str, Any]]:
        """The fields of GenerateRequest that one of the objects about the answer's form stands for, and which it is."""
        formatted, structured = constraint_fields(self.response_format), structured_fields(self.structured_outputs)
        if formatted and structured:
            raise InvalidRequest(f"Give one of {FIELD} and {STRUCTURED}, not both.", STRUCTURED)
        return (STRUCTURED, structured) if structured else (FIELD, formatted)

    def shared(self) -> dict[str, Any]:
        """The fields that pass on as they are; null ones are left to their defaults."""
        if self.user is not None and len(self.user) > MAX_NAME:
            raise InvalidRequest(f"user may have {MAX_NAME} characters at most, not {len(self.user)}.", "user")
        given = {name: getattr(self, name) for name in _Declared.__struct_fields__}
        fields = {name: value for name, value in given.items() if value is not None}
        return {**fields, **self._formatted(fields)}

    def _formatted(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What `response_format` adds to these fields; it excludes the native ones."""
        place, formatted = self.asked_format()
        native = next((kind for kind in KINDS if kind in fields), None)
        if formatted and native is not None:
            raise InvalidRequest(f"Give one of {place} and {native}, not both.", native)
        if "strict" in formatted and "strict" in fields:
            raise InvalidRequest(f"Give strict once: in {FIELD}, or beside it.", "strict")
        return formatted


class CompletionBody(SharedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/completions."""

    tolerated: ClassVar[Mapping[str, Tolerated]] = TEXT_TOLERATED

    prompt: str | list[str | int | list[int]]
    logprobs: Annotated[int | None, Field("the likeliest tokens at each position", elsewhere=("n_probs",))] = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    def requests(self) -> list[GenerateRequest]:
        """One native request for each prompt. Raises InvalidRequest naming the field."""
        if self.suffix:
            raise InvalidRequest("suffix (insertion) is not supported; send the text before it as prompt.", "suffix")
        if self.best_of not in (None, self.n or 1):
            raise InvalidRequest("best_of is supported only where it equals n.", "best_of")
        fields = self.shared()
        fields["max_tokens"] = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        fields["logprobs"] = self.logprobs
        fields["echo"] = bool(self.echo)
        if self.echo:
            fields["prompt_logprobs"] = self.logprobs
        return [GenerateRequest(prompt=prompt, **fields) for prompt in _prompts(self.prompt)]

    def names(self) -> dict[str, str]:
        return {"prompt_logprobs": "logprobs", **super().names()}


class ChatBody(SharedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/chat/completions."""

    tolerated: ClassVar[Mapping[str, Tolerated]] = CHAT_TOLERATED

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[int | None, _BUDGET] = None
    reasoning: ReasoningObject | None = None
    thinking: ThinkingObject | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    reasoning_format: str | None = None

    prediction: Prediction | None = None

    def unused(self) -> list[str]:
        found = super().unused()
        if self.parallel_tool_calls is not None and not self.tools:
            found.append("parallel_tool_calls")
        if self.top_logprobs is not None and not self.logprobs:
            found.append("top_logprobs")
        return found

    def requests(self) -> list[GenerateRequest]:
        """The one native request that this conversation is. Raises InvalidRequest naming the field."""
        _refuse_unsupported(self)
        fields = self.shared()
        if len({self.max_completion_tokens, self.max_tokens} - {None}) > 1:
            raise InvalidRequest("max_completion_tokens and max_tokens are one field; give it once.", "max_tokens")
        fields["max_tokens"] = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        fields["logprobs"] = self._logprobs()
        fields["prediction"] = None if self.prediction is None else self.prediction.text
        fields["tools"] = self.tools or None
        fields["tool_choice"] = self.tool_choice
        fields["parallel_tool_calls"] = self.parallel_tool_calls
        fields["add_generation_prompt"] = self.add_generation_prompt
        fields["continue_final_message"] = bool(self.continue_final_message)
        fields["template_kwargs"] = self.chat_template_kwargs or {}
        fields |= thinking_fields(self)
        return [GenerateRequest(messages=self.messages, **fields)]

    def names(self) -> dict[str, str]:
        completion = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        renamed = {"template_kwargs": "chat_template_kwargs", **completion, **thinking_names(self)}
        return {**renamed, **super().names()}

    @property
    def constrained(self) -> bool:
        return super().constrained or (bool(self.tools) and self.tool_choice != "none")

    def _logprobs(self) -> int | None:
        top = self.top_logprobs
        if not self.logprobs:
            if top:
                raise InvalidRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
            return None
        if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, not {top}.", "top_logprobs")
        return top or 0


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[str | int | list[int]]]:
    """The prompts of a completion body: text, a list of texts, token ids, or a list of lists of token ids."""
    if isinstance(prompt, str):
        return [_filled(prompt, "prompt")]
    if not prompt:
        raise InvalidRequest("prompt is an empty list; it must hold at least one prompt or token id.", "prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise InvalidRequest(
            "prompt mixes texts and token ids; a list holds texts, token ids, or lists of token ids. "
            "One prompt made of both goes to /generate.",
            "prompt",
        )
    if kinds == {int}:
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt may hold {MAX_PROMPTS} prompts at most, not {len(prompt)}.", "prompt")
    return [_filled(item, f"prompt[{i}]") for i, item in enumerate(prompt)]  # pyright: ignore[reportReturnType]


def _filled(prompt: Any, place: str) -> Any:
    if not prompt:
        raise InvalidRequest(f"{place} is empty; a prompt must hold at least one token.", place)
    return prompt


def _refuse_unsupported(body: ChatBody) -> None:
    for i, message in enumerate(body.messages):
        for key in ("function_call", "audio"):
            if message.get(key) is not None:
                raise InvalidRequest(f"messages[{i}].{key} is not supported.", f"messages[{i}].{key}")
