"""The body of /v1/responses and what it becomes: a native request, checked further by `front.requests.params`.

A field that asks for something Sapwood does not do is refused by its name; none is accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from ...front.requests.constraints import KINDS
from ...front.requests.params import MAX_NAME
from ...front.requests.reasoning_fields import EFFORTS
from ...front.requests.request_fields import GenerateRequest
from ...front.requests.tolerated import CHAT_TOLERATED, Tolerated
from ...wire.errors import InvalidRequest, Path
from ..openai.bodies import MAX_TOP_LOGPROBS, SharedFields
from .input_items import Conversation, Item
from .response_tools import ToolSet, chat_tool_choice, left_out, read_tools

MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  # of metadata, as OpenAI has it
_LOGPROBS, _SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"
_INCLUDES = (
    _LOGPROBS,
    _SEALED,
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
_WITHOUT_EFFECT = (
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "service_tier",
    "max_tool_calls",
)
_SUMMARIES = ("summary", "generate_summary")
_LABEL = "it is a label for whoever sends it"  # Codex does
_FORMATS = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "name": …, "schema": {…}}'
_ELSEWHERE: dict[str, Path] = {
    "max_tokens": ("max_output_tokens",),
    "logprobs": ("top_logprobs",),
    "template_kwargs": ("chat_template_kwargs",),
    "json_schema": ("text", "format", "schema"),
    "json_object": ("text", "format"),
    "strict": ("text", "format", "strict"),
    "reasoning_effort": ("reasoning", "effort"),
}


class ResponseBody(SharedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/responses. Null means what absent means; fields after `thinking_budget` are OpenAI's that are not
    supported."""

    tolerated: ClassVar[Mapping[str, Tolerated]] = {**CHAT_TOLERATED, "client_metadata": Tolerated(_LABEL)}

    input: str | list[Item] | None = None
    instructions: str | list[Item] | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    truncation: str | None = None
    max_tool_calls: int | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = None

    conversation: Any = None
    context_management: Any = None
    prompt: Any = None

    def unused(self) -> list[str]:
        """Fields that are given and have no effect on the answer."""
        found = super().unused() + [name for name in _WITHOUT_EFFECT if getattr(self, name) is not None]
        if self.parallel_tool_calls is not None and not self.tools:
            found.append("parallel_tool_calls")
        if self.truncation == "auto":
            found.append("truncation")
        if (self.text or {}).get("verbosity") is not None:
            found.append("text.verbosity")
        found += [
            f"reasoning.{name}"
            for name in (*_SUMMARIES, "context", "mode")
            if (self.reasoning or {}).get(name) is not None
        ]
        return found + [f"tools.{kind}" for kind in left_out(self.tools)]

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def wants_sealed(self) -> bool:
        """Whether reasoning items are to have `encrypted_content`."""
        return _SEALED in (self.include or ())

    @property
    def constrained(self) -> bool:
        calls = bool(self.tools) and self.tool_choice != "none"
        return super().constrained or calls or self._format().get("type", "text") != "text"

    def items(self, referenced: Callable[[str, str], Item]) -> list[Item]:
        """The input as items. referenced: finds an item by its id, for a field."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": self.input}]}]
        items = self.input or []
        return [referenced(*_reference(each, i)) if _is_reference(each) else each for i, each in enumerate(items)]

    def understood(self, before: Iterable[Item], known: Iterable[Item]) -> tuple[GenerateRequest, ToolSet, Names]:
        """The one native request that this is. Raises InvalidRequest naming the field, in this body.

        before: the items of the response that this one goes on from. known: the input's items, references resolved.
        """
        self._check()
        conversation = Conversation()
        conversation.instruct(self.instructions)
        conversation.add(before, ("previous_response_id",), numbered=False)
        conversation.add(known, ("input",), numbered=not isinstance(self.input, str))
        conversation.end()
        if not conversation.messages:
            raise InvalidRequest.about(("input",), "is empty; it must hold at least one item.")
        tools = read_tools(self.tools)
        fields = {**self.shared(), **self._text_fields()}
        if self.max_output_tokens is not None:
            fields["max_tokens"] = self.max_output_tokens
        if tools.chat:
            fields |= {"tools": tools.chat, "parallel_tool_calls": self.parallel_tool_calls}
        fields["tool_choice"] = chat_tool_choice(self.tool_choice, tools)
        fields["logprobs"] = (self.top_logprobs or 0) if self.wants_logprobs else None
        fields["template_kwargs"] = self.chat_template_kwargs or {}
        fields |= self.thinking()
        request = GenerateRequest(messages=conversation.messages, **fields)
        given = {kind for kind in KINDS if getattr(self, kind) not in (None, False)}
        return request, tools, Names(conversation.places, tools.places, given)

    def thinking(self) -> dict[str, Any]:
        """What is said of thinking, as fields of the native request."""
        effort = (self.reasoning or {}).get("effort")
        said = {"enable_thinking": self.enable_thinking, "thinking_budget": self.thinking_budget}
        return {name: value for name, value in {**said, "reasoning_effort": effort}.items() if value is not None}

    def text_echo(self) -> dict[str, Any]:
        """`text` with its defaults."""
        return {"format": {"type": "text"}, "verbosity": "medium", **(self.text or {})}

    def _format(self) -> dict[str, Any]:
        said = (self.text or {}).get("format")
        return said if isinstance(said, dict) else {}

    def _text_fields(self) -> dict[str, Any]:
        """What `text` asks for as fields of the native request."""
        if self.text is None:
            return {}
        _only(self.text, ("format", "verbosity"), ("text",))
        if self.text.get("verbosity") not in (None, "low", "medium", "high"):
            raise InvalidRequest.about(("text", "verbosity"), "must be 'low', 'medium' or 'high'.")
        place: Path = ("text", "format")
        said = self.text.get("format")
        if said is None:
            return {}
        kind = said.get("type") if isinstance(said, dict) else None
        if kind not in ("text", "json_object", "json_schema") or not isinstance(said, dict):
            raise InvalidRequest.about((*place, "type"), f"is {kind!r}; allowed is {_FORMATS}.")
        native = next((each for each in KINDS if getattr(self, each) not in (None, False)), None)
        if kind != "text" and (native or self.response_format):
            other = native or "response_format"
            raise InvalidRequest([place, " and ", (other,), " exclude each other."], other)
        if kind != "json_schema":
            _only(said, ("type",), place)
            return {"json_object": True} if kind == "json_object" else {}
        _only(said, ("type", "name", "description", "schema", "strict"), place)
        if not isinstance(said.get("schema"), dict | bool):
            raise InvalidRequest.about((*place, "schema"), f"must be a JSON Schema; allowed is {_FORMATS}.")
        if not isinstance(said.get("strict"), bool | None):
            raise InvalidRequest.about((*place, "strict"), "must be true or false.")
        strict = {} if said.get("strict") is None else {"strict": said["strict"]}
        return {"json_schema": said["schema"], **strict}

    def _check(self) -> None:
        """Refuse what cannot be done, and what has no meaning."""
        for name, sentence in _UNSUPPORTED.items():
            if getattr(self, name) not in (None, []):
                raise InvalidRequest.about((name,), sentence)
        if self.n not in (None, 1):
            raise InvalidRequest.about(("n",), f"must be 1: a response is one completion; not {self.n}.")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream to be true.", "stream_options")
        if self.background and not self.is_stored:
            raise InvalidRequest([("background",), " needs ", ("store",), " to be true."], "background")
        if self.max_output_tokens is not None and self.max_tokens not in (None, self.max_output_tokens):
            raise InvalidRequest("Give max_output_tokens or max_tokens, not both.", "max_tokens")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            text = f"must be between 0 and {MAX_TOP_LOGPROBS}, not {self.top_logprobs}."
            raise InvalidRequest.about(("top_logprobs",), text)
        if self.truncation not in (None, "auto", "disabled"):
            raise InvalidRequest.about(("truncation",), "must be 'auto' or 'disabled'.")
        for i, each in enumerate(self.include or ()):
            if each not in _INCLUDES:
                raise InvalidRequest.about(("include", i), f"is {each!r}; allowed are {', '.join(_INCLUDES)}.")
        for name in ("safety_identifier", "prompt_cache_key"):
            if len(getattr(self, name) or "") > MAX_NAME:
                raise InvalidRequest.about((name,), f"may have {MAX_NAME} characters at most.")
        self._check_reasoning()
        self._check_metadata()

    def _check_reasoning(self) -> None:
        said = self.reasoning or {}
        _only(said, ("effort", "summary", "generate_summary", "context", "mode"), ("reasoning",))
        if said.get("effort") not in (None, *EFFORTS):
            raise InvalidRequest.about(("reasoning", "effort"), f"must be one of {', '.join(EFFORTS)}.")
        for name in _SUMMARIES:
            if said.get(name) not in (None, "auto", "concise", "detailed"):
                raise InvalidRequest.about(("reasoning", name), "must be 'auto', 'concise' or 'detailed'.")

    def _check_metadata(self) -> None:
        pairs = self.metadata or {}
        if len(pairs) > MAX_PAIRS:
            raise InvalidRequest.about(("metadata",), f"may hold {MAX_PAIRS} pairs at most, not {len(pairs)}.")
        for key, value in pairs.items():
            if len(key) > MAX_KEY or len(value) > MAX_VALUE:
                text = f"may have keys of {MAX_KEY} and values of {MAX_VALUE} characters at most."
                raise InvalidRequest.about(("metadata",), text)


class Names:
    """What the fields of the native request are called in the body that it was made of."""

    def __init__(self, messages: list[Path], tools: list[Path], given: set[str]) -> None:
        """messages, tools: where each of them stands. given: the constraints that have their own field."""
        self._lists = {"messages": (messages, "input"), "tools": (tools, "tools")}
        self._given = given

    def __call__(self, path: Path) -> Path:
        root, *rest = path
        if root in self._lists:
            places, whole = self._lists[str(root)]
            if not rest or not isinstance(rest[0], int) or rest[0] >= len(places):
                return (whole, *rest)
            within = [step for step in rest[1:] if step not in ("function", "custom")] if root == "tools" else rest[1:]
            return (*places[rest[0]], *within)
        if root in self._given or (root == "strict" and self._given):
            return path
        return (*_ELSEWHERE.get(str(root), (root,)), *rest)


def _is_reference(item: Item) -> bool:
    """{"type": "item_reference", "id": …}; its type may be left out."""
    return item.get("type") == "item_reference" or (item.keys() <= {"id", "type"} and item.get("type") is None)


def _reference(item: Item, index: int) -> tuple[str, str]:
    if not isinstance(item.get("id"), str):
        raise InvalidRequest.about(("input", index, "id"), "must be the id of an item of a stored response.")
    return item["id"], f"input[{index}].id"


def _only(said: dict[str, Any], allowed: tuple[str, ...], place: Path) -> None:
    for key in said:
        if key not in allowed:
            raise InvalidRequest.about((*place, key), f"is unknown; allowed are {', '.join(allowed)}.")


_UNSUPPORTED = {
    "conversation": "is not supported; go on with a conversation by previous_response_id, or send its items as input.",
    "context_management": "is not supported; a conversation is never compacted.",
    "prompt": "(a stored template) is not supported; send its text as instructions or input.",
}
