"""The bodies of Ollama's /api/chat and /api/generate and what they become: native requests, checked further by
`front.requests.params`.

What asks for something Sapwood does not do is refused by its name; what asks for nothing of the answer has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from ....runtime.declaration import with_nulls
from ...front.requests.bodies import decode_tolerant, respelled
from ...front.requests.constraints import KINDS
from ...front.requests.request_fields import CompletionFields, GenerateRequest
from ...front.requests.tolerated import CHAT_TOLERATED, Tolerated
from ...wire.errors import InvalidRequest, Path

MAX_TOP_LOGPROBS = 20
THINK_LEVELS = ("low", "medium", "high", "max")
_MACHINE = Tolerated("the server was started with its own settings")
_DeclaredOptions = with_nulls("_DeclaredOptions", CompletionFields, lambda field: field.openai)
_OPTIONS_TOLERATED = {
    **CHAT_TOLERATED,
    **dict.fromkeys(
        (
            "numa",
            "num_batch",
            "num_gpu",
            "main_gpu",
            "low_vram",
            "f16_kv",
            "logits_all",
            "vocab_only",
            "use_mmap",
            "use_mlock",
            "num_thread",
            "embedding_only",
            "num_keep",
        ),
        _MACHINE,
    ),
    "penalize_newline": Tolerated("penalties are of tokens; none is left out", (True,)),
}


class OllamaOptions(_DeclaredOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ollama's `options`: its names, and all of a completion's fields. Null means what absent means.

    num_predict: most tokens; negative is no bound. num_ctx: may be no more than the context. repeat_last_n: penalties
    look at all tokens, so that it may say otherwise only where there are none.
    """

    tolerated: ClassVar[Mapping[str, Tolerated]] = _OPTIONS_TOLERATED

    num_predict: int | None = None
    num_ctx: int | None = None
    repeat_last_n: int | None = None

    def unused(self) -> list[str]:
        """Fields that are given and have no effect on the answer."""
        return [name for name in ("num_ctx", "repeat_last_n") if getattr(self, name) is not None]

    def fields(self, max_context: int) -> dict[str, Any]:
        """The fields of a native request. Raises InvalidRequest."""
        if self.num_ctx is not None and self.num_ctx > max_context:
            text = f"is {self.num_ctx}; the context of this server is {max_context} tokens."
            raise InvalidRequest.about(("num_ctx",), text)
        if self.n not in (None, 1):
            raise InvalidRequest.about(("n",), f"must be 1: an answer is one completion; not {self.n}.")
        if self.return_token_ids:
            text = "is not known here; /generate has it, and /v1/chat/completions."
            raise InvalidRequest.about(("return_token_ids",), text)
        penalized = self.repetition_penalty not in (None, 1)
        if penalized and self.repeat_last_n not in (None, -1):
            text = "may only be -1 beside a repeat_penalty, which looks at all of prompt and completion."
            raise InvalidRequest.about(("repeat_last_n",), text)
        given = {name: getattr(self, name) for name in _DeclaredOptions.__struct_fields__}
        return {name: value for name, value in given.items() if value is not None}


class OllamaBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take. Null means what absent means; a stream is the default."""

    tolerated: ClassVar[Mapping[str, Tolerated]] = {
        "keep_alive": Tolerated("the model stays loaded"),
        "shift": Tolerated("a conversation is never cut"),
        "truncate": Tolerated("a prompt that is too long is refused, never cut", (False, True)),
    }

    model: str | None = None
    stream: bool | None = None
    options: dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: str | float | None = None

    def unused(self) -> list[str]:
        """Fields that are given and have no effect on the answer."""
        return ["keep_alive"] if self.keep_alive is not None else []

    def thinking_fields(self) -> dict[str, Any]:
        """What `think` says, as fields of the native request. Raises InvalidRequest."""
        if self.think is None:
            return {}
        if isinstance(self.think, bool):
            return {"enable_thinking": self.think}
        if self.think not in THINK_LEVELS:
            raise InvalidRequest.about(("think",), f"must be true, false or one of {', '.join(THINK_LEVELS)}.")
        return {"reasoning_effort": self.think}

    def common(self, max_context: int) -> tuple[dict[str, Any], list[str], dict[str, str]]:
        """The fields of a native request, the options that had no effect, and how fields are called in `options`.

        Raises InvalidRequest.
        """
        try:
            understood = decode_tolerant(msgspec.json.encode(self.options or {}), OllamaOptions)
        except InvalidRequest as error:
            raise error.renamed(_in_options) from None
        options = understood.body
        try:
            fields = options.fields(max_context)
        except InvalidRequest as error:
            raise respelled(error, understood.spelled).renamed(_in_options) from None
        predict = options.num_predict
        if predict is not None:
            fields["max_tokens"] = None if predict < 0 else predict
        elif "max_tokens" not in fields:
            fields["max_tokens"] = None
        fields |= self._formatted(fields)
        fields |= self.thinking_fields()
        if self.logprobs:
            if not 0 <= (self.top_logprobs or 0) <= MAX_TOP_LOGPROBS:
                text = f"must be between 0 and {MAX_TOP_LOGPROBS}, not {self.top_logprobs}."
                raise InvalidRequest.about(("top_logprobs",), text)
            fields["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true.", "top_logprobs")
        spelled = {**understood.spelled, **({"max_tokens": "num_predict"} if predict is not None else {})}
        return fields, [f"options.{name}" for name in understood.ignored], spelled

    def _formatted(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self.format is None or self.format == "":
            return {}
        native = next((kind for kind in KINDS if kind in fields), None)
        if native is not None:
            raise InvalidRequest([("format",), " and ", ("options", native), " exclude each other."], "format")
        if isinstance(self.format, dict):
            return {"json_schema": self.format}
        if self.format != "json":
            raise InvalidRequest.about(("format",), 'must be "json" or a JSON Schema, an object.')
        return {"json_object": True}


class OllamaChatBody(OllamaBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/chat."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None

    @property
    def loads_only(self) -> bool:
        """Whether it only wants the model to be loaded (or unloaded)."""
        return not self.messages

    def request(self, max_context: int) -> tuple[GenerateRequest, OllamaNames, list[str]]:
        """The native request, its names, and what had no effect. Raises InvalidRequest."""
        fields, ignored, spelled = self.common(max_context)
        messages = _messages(self.messages or [])
        request = GenerateRequest(messages=messages, tools=self.tools or None, **fields)
        return request, OllamaNames(spelled), ignored


class OllamaGenerateBody(OllamaBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/generate. raw: the prompt is no message but the text itself; only then may `context`, the
    token ids of an earlier answer, come before it."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    context: list[int] | None = None
    suffix: str | None = None
    template: str | None = None
    images: list[str] | None = None

    @property
    def loads_only(self) -> bool:
        """Whether it only wants the model to be loaded (or unloaded)."""
        return not self.prompt

    def request(self, max_context: int) -> tuple[GenerateRequest, OllamaNames, list[str]]:
        """The native request, its names, and what had no effect. Raises InvalidRequest."""
        for name, sentence in _UNSUPPORTED.items():
            if getattr(self, name):
                raise InvalidRequest.about((name,), sentence)
        fields, ignored, spelled = self.common(max_context)
        if not self.raw:
            if self.context:
                text = "needs raw to be true; a conversation goes on by /api/chat with its messages."
                raise InvalidRequest.about(("context",), text)
            system = [{"role": "system", "content": self.system}] if self.system else []
            messages = [*system, {"role": "user", "content": self.prompt or ""}]
            return GenerateRequest(messages=messages, **fields), OllamaNames(spelled, "prompt"), ignored
        if self.system:
            raise InvalidRequest.about(("system",), "has no meaning with raw; write it into the prompt.")
        if self.think:
            raise InvalidRequest.about(("think",), "has no meaning with raw.")
        if fields["max_tokens"] is None:
            fields["max_tokens"] = max_context
        prompt = [self.context, self.prompt or ""] if self.context else self.prompt or ""
        return GenerateRequest(prompt=prompt, **fields), OllamaNames(spelled), ignored  # pyright: ignore[reportArgumentType]


class OllamaNames:
    """What the fields of the native request are called in the body that it was made of."""

    def __init__(self, spelled: Mapping[str, str], messages: str = "messages") -> None:
        """spelled: the names of options. messages: where a conversation's text is from."""
        self._spelled = spelled
        self._messages = messages

    def __call__(self, path: Path) -> Path:
        root, *rest = path
        if root == "messages":
            return path if self._messages == "messages" else (self._messages,)
        if root == "prompt":
            return ("context",) if rest else path
        if root in ("enable_thinking", "reasoning_effort"):
            return ("think",)
        if root in ("tools", "logprobs"):
            return path
        if root in ("json_schema", "json_object"):
            return ("format", *rest)
        return _in_options((self._spelled.get(str(root), root), *rest))


_UNSUPPORTED = {
    "suffix": "(insertion) is not supported.",
    "template": "is not supported here; start the server with --chat-template FILE.",
    "images": "are not supported; the model reads text.",
}
_MESSAGE = ("role", "content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id")


def _in_options(path: Path) -> Path:
    return ("options", *path)


def _messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the chat endpoint has them. Calls, which have no ids at Ollama, are numbered, and so are their results."""
    calls = results = 0
    made = []
    for i, message in enumerate(messages):
        place: Path = ("messages", i)
        for key in message:
            if key not in _MESSAGE:
                raise InvalidRequest.about((*place, key), f"is unknown; allowed are {', '.join(_MESSAGE)}.")
        if message.get("images"):
            raise InvalidRequest.about((*place, "images"), _UNSUPPORTED["images"])
        out = {"role": message.get("role"), "content": message.get("content") or ""}
        if message.get("thinking"):
            out["reasoning_content"] = message["thinking"]
        said = message.get("tool_calls")
        if said and isinstance(said, list):
            out["tool_calls"] = [_call(call, calls + j) for j, call in enumerate(said)]
            calls += len(said)
        elif said:
            raise InvalidRequest.about((*place, "tool_calls"), "must be a list of tool calls.")
        if message.get("role") == "tool":
            out["tool_call_id"] = message.get("tool_call_id") or _call_id(min(results, max(calls - 1, 0)))
            results += 1
            if message.get("tool_name"):
                out["name"] = message["tool_name"]
        made.append(out)
    return made


def _call(call: Any, number: int) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call  # refused by name further on
    function = {key: value for key, value in call["function"].items() if key in ("name", "arguments")}
    return {"id": call.get("id") or _call_id(number), "type": "function", "function": function}


def _call_id(number: int) -> str:
    return f"call{number:05d}"
