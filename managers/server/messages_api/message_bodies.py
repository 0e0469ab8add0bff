"""The bodies of /v1/messages and what they become: native requests, checked further by `front.requests.params`.

A field that asks for something Sapwood does not do is refused by its name; those that ask for nothing of the answer
(`cache_control`, `metadata`, `service_tier`) have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...front.requests.constraints import KINDS
from ...front.requests.params import MAX_NAME
from ...front.requests.request_fields import GenerateRequest
from ...front.requests.tolerated import CHAT_TOLERATED, Tolerated
from ...wire.errors import InvalidRequest, Path
from ..openai.bodies import SharedFields
from .message_blocks import Block, MessageList
from .message_tools import chat_choice, chat_tools

EFFORTS = ("low", "medium", "high", "xhigh", "max")
_THINKING = ("enabled", "disabled", "adaptive", "between_tools")
_SHOWN = ("summarized", "omitted")
_FORMAT = '{"type": "json_schema", "schema": {…}}'
_ELSEWHERE: dict[str, str] = {
    "stop": "stop_sequences",
    "template_kwargs": "chat_template_kwargs",
    "thinking_budget": "thinking.budget_tokens",
}


class CountBody(SharedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/messages/count_tokens, and all of a message's. Null means what absent means. Fields after
    `chat_template_kwargs` have no effect, and those after `workspace_id` are Anthropic's that are not supported."""

    tolerated: ClassVar[Mapping[str, Tolerated]] = CHAT_TOLERATED

    messages: list[dict[str, Any]]
    system: str | list[Block] | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    metadata: dict[str, Any] | None = None
    speed: str | None = None
    inference_geo: str | None = None
    diagnostics: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None

    container: Any = None
    mcp_servers: Any = None
    fallbacks: Any = None
    thread: Any = None

    def request(self) -> tuple[GenerateRequest, MessageNames]:
        """The one native request that this is. Raises InvalidRequest naming the field."""
        self._check()
        conversation = MessageList()
        conversation.begin(self.system)
        conversation.add(self.messages)
        tools = chat_tools(self.tools)
        fields = self.shared()
        if self.stop_sequences is not None:
            fields["stop"] = self.stop_sequences
        if self.max_tokens is not None:
            fields["max_tokens"] = self.max_tokens
        fields["tools"] = tools or None
        choice, parallel = chat_choice(self.tool_choice)
        fields["tool_choice"] = choice
        if tools:
            fields["parallel_tool_calls"] = parallel
        fields["continue_final_message"] = conversation.continues
        fields["template_kwargs"] = self.chat_template_kwargs or {}
        fields |= {name: value for name, (value, _) in self.thinking_fields().items()}
        fields |= self._schema()
        request = GenerateRequest(messages=conversation.messages, **fields)
        given = {kind for kind in KINDS if getattr(self, kind) not in (None, False)}
        return request, MessageNames(conversation.places, given, self._format()[0])

    def unused(self) -> list[str]:
        """Fields that are given and have no effect on the answer."""
        return [*super().unused(), *(name for name in _ADVISORY if getattr(self, name) is not None)]

    def thinking_fields(self) -> dict[str, tuple[Any, str]]:
        """What is said of thinking, as fields of the native request, and what they are called here."""
        said, made = self.thinking or {}, {}
        if said.get("type") in ("enabled", "disabled"):
            made["enable_thinking"] = (said["type"] == "enabled", "thinking.type")
        if said.get("budget_tokens") is not None and said.get("type") != "disabled":
            made["thinking_budget"] = (said["budget_tokens"], "thinking.budget_tokens")
        effort = (self.output_config or {}).get("effort")
        if effort is not None and said.get("type") != "disabled":
            made["reasoning_effort"] = ("xhigh" if effort == "max" else effort, "output_config.effort")
        return made

    @property
    def constrained(self) -> bool:
        calls = bool(self.tools) and (self.tool_choice or {}).get("type") != "none"
        return super().constrained or calls or self._format()[1] is not None

    @property
    def hides_thinking(self) -> bool:
        """Whether what is thought stays out of sight, sealed in its signature."""
        return (self.thinking or {}).get("display") == "omitted"

    @property
    def asked_by(self) -> str:
        """Who it is for, for the log."""
        return self.user or (self.metadata or {}).get("user_id") or ""

    def _format(self) -> tuple[Path, dict[str, Any] | None]:
        """What the answer's form is asked for in, and where."""
        said = (self.output_config or {}).get("format")
        return (("output_config", "format"), said) if said is not None else (("output_format",), self.output_format)

    def _schema(self) -> dict[str, Any]:
        place, said = self._format()
        if said is None:
            return {}
        if not isinstance(said, dict) or said.get("type") != "json_schema" or not isinstance(said.get("schema"), dict):
            raise InvalidRequest.about(place, f"must be {_FORMAT}.")
        for key in said:
            if key not in ("type", "schema", "name", "strict"):
                raise InvalidRequest.about((*place, key), f"is unknown; the right shape is {_FORMAT}.")
        other = next((each for each in (*KINDS, "response_format") if getattr(self, each) not in (None, False)), None)
        if other is not None:
            raise InvalidRequest([place, " and ", (other,), " exclude each other."], other)
        return {"json_schema": said["schema"]}

    def _check(self) -> None:
        for name, sentence in _UNSUPPORTED.items():
            if getattr(self, name) not in (None, []):
                raise InvalidRequest.about((name,), sentence)
        if self.n not in (None, 1):
            raise InvalidRequest.about(("n",), f"must be 1: a message is one completion; not {self.n}.")
        if self.stop_sequences is not None and self.stop is not None:
            raise InvalidRequest("Give stop_sequences or stop, not both.", "stop")
        user = (self.metadata or {}).get("user_id")
        if not isinstance(user, str | None) or len(user or "") > MAX_NAME:
            raise InvalidRequest.about(("metadata", "user_id"), f"must be text of {MAX_NAME} characters at most.")
        _only(self.output_config, ("effort", "format"), ("output_config",))
        if (self.output_config or {}).get("effort") not in (None, *EFFORTS):
            raise InvalidRequest.about(("output_config", "effort"), f"must be one of {', '.join(EFFORTS)}.")
        for i, edit in enumerate((self.context_management or {}).get("edits") or []):
            kind = edit.get("type") if isinstance(edit, dict) else None
            if not str(kind).startswith("clear_thinking"):  # whether earlier thinking is shown, the template decides
                place: Path = ("context_management", "edits", i, "type")
                raise InvalidRequest.about(place, f"is {kind!r}; a conversation is never edited.")
        self._check_thinking()

    def _check_thinking(self) -> None:
        said = self.thinking
        if said is None:
            return
        _only(said, ("type", "budget_tokens", "display"), ("thinking",))
        if said.get("type") not in _THINKING:
            raise InvalidRequest.about(("thinking", "type"), f"must be one of {', '.join(_THINKING)}.")
        if said.get("display") not in (None, *_SHOWN):
            raise InvalidRequest.about(("thinking", "display"), "must be 'summarized' or 'omitted'.")
        budget = said.get("budget_tokens")
        if budget is not None and (type(budget) is not int or budget < 0):
            raise InvalidRequest.about(("thinking", "budget_tokens"), "must be a number of tokens.")
        if said["type"] == "enabled" and budget is None:
            raise InvalidRequest.about(("thinking", "budget_tokens"), "is missing; enabled thinking needs it.")


_ADVISORY = (
    "metadata",
    "speed",
    "inference_geo",
    "diagnostics",
    "context_management",
    "user_profile_id",
    "workspace_id",
)


class MessageBody(CountBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/messages."""

    max_tokens: int  # pyright: ignore[reportGeneralTypeIssues]


class MessageNames:
    """What the fields of the native request are called in the body that it was made of."""

    def __init__(self, places: list[Path], given: set[str], schema: Path) -> None:
        """places: where each message begins. given: the constraints that have their own field. schema: where the
        answer's form is said."""
        self._places = places
        self._given = given
        self._schema = schema

    def __call__(self, path: Path) -> Path:
        root, *rest = path
        if root == "messages" and rest and isinstance(rest[0], int) and rest[0] < len(self._places):
            within = ["content"] if rest[1:2] == ["content"] and len(self._places[rest[0]]) == 2 else []
            return (*self._places[rest[0]], *within)
        if root == "tools":
            steps = ["input_schema" if each == "parameters" else each for each in rest if each != "function"]
            return ("tools", *steps)
        if root == "tool_choice":
            return ("tool_choice",)
        if root == "parallel_tool_calls":
            return ("tool_choice", "disable_parallel_tool_use")
        if root == "json_schema" and root not in self._given:
            return (*self._schema, "schema", *rest)
        return (_ELSEWHERE.get(str(root), root), *rest)


def _only(said: dict[str, Any] | None, allowed: tuple[str, ...], place: Path) -> None:
    for key in said or {}:
        if key not in allowed:
            raise InvalidRequest.about((*place, key), f"is unknown; allowed are {', '.join(allowed)}.")


_UNSUPPORTED = {
    "container": "is not supported; nothing is run here.",
    "mcp_servers": "is not supported; tools are called by who asks.",
    "fallbacks": "is not supported; one model is served.",
    "thread": "is not supported; send the whole conversation: what was read before is in the cache.",
    "response_format": "is OpenAI's; here it is output_config.format.",
}
