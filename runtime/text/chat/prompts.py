"""Conversations to prompts, with the chat templates that came with a model: nothing of a conversation is ever dropped.

Where a template shows a conversation whole, the prompt is the one of transformers. Where it does not, its parts are
folded into turns that the template has (see `folding`); where that does not help either, the conversation is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import TemplateError
from ..tokenizers.base import Fragment, Tokenizer
from .abilities import Abilities
from .folding import Conversation, flattened, folded
from .messages import Message, Tools, normalize
from .template import ChatTemplate, Messages
from .token_parts import TokenParts
from .tool_formats import HERMES, ToolFormat
from .traces import TOOL_MARK, first_untraced, marked, marked_tools

DEFAULT, TOOL_USE = "default", "tool_use"
PLANNING_SECONDS = 2.0
_MOST_PLANS = 512
_MOST_KWARGS = 8
_LONGEST_PLAN = 1 << 16

Fold = Callable[[Sequence[Message], Tools | None], Conversation]


class ChatPrompts:
    """The templates of one model by name. Not for use by several threads at once."""

    def __init__(
        self,
        sources: Mapping[str, str],
        tokenizer: Tokenizer,
        tool_format: Callable[[str], ToolFormat | None] = lambda source: None,
    ) -> None:
        """tool_format: how a template's model writes calls. A template is compiled when it is first needed."""
        self._sources = sources
        self._tokenizer = tokenizer
        self._tool_format = tool_format
        self._planners: dict[str, _Planner] = {}

    def render(
        self,
        messages: Messages,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] = {},
        *,
        allow_control: bool = False,
    ) -> list[Fragment]:
        """The prompt as plain text and ids; see `ChatTemplate.render`, whose arguments these are. A content may have
        parts of type "token_ids". With tools, the template named "tool_use" renders where there is one.

        Raises TemplateError.
        """
        parts = TokenParts()
        normal = normalize(messages, stand_in=parts.stand_in)
        planner = self._planner(tools)
        kwargs = {**template_kwargs}
        fold = planner.fold(normal, tools, kwargs, opens=add_generation_prompt and not continue_final_message)
        shown, shown_tools = fold(planner.own_roles(normal), tools)
        shown_tools = shown_tools or planner.no_tools
        text = planner.template.text(shown, shown_tools, add_generation_prompt, continue_final_message, kwargs)
        fragments: list[Fragment] = []
        for piece in parts.split(text):
            is_text = isinstance(piece, str)
            fragments += planner.template.fragments(piece, allow_control=allow_control) if is_text else piece
        return fragments

    def _planner(self, tools: Tools | None) -> _Planner:
        name = TOOL_USE if tools and TOOL_USE in self._sources else DEFAULT
        if name not in self._sources:
            raise TemplateError(f"none of the model's chat templates ({', '.join(self._sources)}) is the default")
        if name not in self._planners:
            source = self._sources[name]
            style = self._tool_format(source) or HERMES
            self._planners[name] = _Planner(ChatTemplate(source, self._tokenizer), style)
        return self._planners[name]


class _Planner:
    """Finds how conversations have to be folded for one template, and remembers it by their shape.

    no_tools: what `tools` is without tools; some templates ask for a list.
    """

    def __init__(self, template: ChatTemplate, style: ToolFormat) -> None:
        self.template = template
        self._style = style
        self._knows_developer = template.names_role("developer")
        self._plans: dict[str, Fold] = {}
        self._abilities: dict[str, Abilities] = {}
        self._deadline = 0.0
        self.no_tools: Tools | None = None

    def own_roles(self, messages: Sequence[Message]) -> list[Message]:
        """`developer` is the newer name of `system`: a template that does not know it sees the older one."""
        if self._knows_developer:
            return list(messages)
        return [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]

    def fold(self, messages: Sequence[Message], tools: Tools | None, kwargs: dict[str, Any], *, opens: bool) -> Fold:
        """What makes of the conversation one that the template shows whole. Raises TemplateError if nothing does."""
        copies, _ = marked(messages)
        key = _written([copies, bool(tools), kwargs, opens])
        fold = self._plans.get(key)
        if fold is None:
            self._deadline = time.monotonic() + PLANNING_SECONDS
            fold = self._found(self.own_roles(messages), tools, kwargs, opens)
            if len(key) <= _LONGEST_PLAN:
                _put(self._plans, key, fold, _MOST_PLANS)
        return fold

    def _found(self, messages: Sequence[Message], tools: Tools | None, kwargs: dict[str, Any], opens: bool) -> Fold:
        complaint = self._complaint(messages, tools, kwargs, opens)
        if complaint is not None and self.no_tools is None and self._wants_list(kwargs):
            self.no_tools = []
            complaint = self._complaint(messages, tools, kwargs, opens)
        if complaint is None:
            return _as_it_is
        can = self._can(kwargs)
        ways: list[Fold] = [
            lambda messages, tools: folded(messages, tools, can, self._style),
            lambda messages, tools: flattened(messages, tools, self._style, keep_system=True),
            lambda messages, tools: flattened(messages, tools, self._style, keep_system=False),
        ]
        for way in ways:
            if self._complaint(*way(messages, tools), kwargs, opens) is None:
                return way
        raise complaint

    def _wants_list(self, kwargs: dict[str, Any]) -> bool:
        """Whether the template fails without tools unless there is an empty list of them."""
        simplest = [{"role": "user", "content": "x"}]
        if self._complaint(simplest, None, kwargs, opens=True) is None:
            return False
        self.no_tools = []
        fails = self._complaint(simplest, None, kwargs, opens=True) is not None
        self.no_tools = None
        return not fails

    def _can(self, kwargs: dict[str, Any]) -> Abilities:
        key = _written(kwargs)
        if key not in self._abilities:
            abilities = Abilities(lambda messages, tools: self._takes(messages, tools, kwargs), self._style)
            _put(self._abilities, key, abilities, _MOST_KWARGS)
        return self._abilities[key]

    def _takes(self, messages: Sequence[Message], with_tools: bool, kwargs: dict[str, Any]) -> bool:
        return self._complaint(messages, [{}] if with_tools else None, kwargs, opens=True) is None

    def _complaint(
        self, messages: Sequence[Message], tools: Tools | None, kwargs: dict[str, Any], opens: bool
    ) -> TemplateError | None:
        """Why a conversation of this shape cannot be given to the template as it is. Its texts do not matter."""
        if time.monotonic() > self._deadline:
            raise TemplateError(f"the chat template is too slow: {PLANNING_SECONDS:g} seconds did not do to try it out")
        copies, marks = marked(messages)
        try:
            text = self.template.text(
                copies, marked_tools(tools) or self.no_tools, opens, False, kwargs, deadline=self._deadline
            )
        except TemplateError as error:
            return error
        i = first_untraced(text, marks)
        if i is not None:
            role = messages[i]["role"]
            return TemplateError(f"messages[{i}], of role {role!r}, is left out by the chat template", ("messages", i))
        if tools and TOOL_MARK not in text:
            return TemplateError("the chat template leaves out the tools", ("tools",))
        return None


def _as_it_is(messages: Sequence[Message], tools: Tools | None) -> Conversation:
    return list(messages), tools


def _written(data: Any) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, sort_keys=True)
    except (RecursionError, TypeError, ValueError) as error:
        raise TemplateError(f"the conversation is not plain JSON data: {error}") from error


def _put(kept: dict[str, Any], key: str, value: Any, most: int) -> None:
    """Into a dict that forgets what has been in it longest."""
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value
