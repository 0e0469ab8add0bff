"""Conversations to prompts, with the chat templates that came with a model: nothing of a conversation is ever dropped.

Where a template shows a conversation whole, the prompt is the one of transformers. Where it does not, its parts are
folded into turns that the template has (see `folding`); where that does not help either, the conversation is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...errors import TemplateError, TemplateRefusal
from ..thoughts.marks import Begins
from ..thoughts.template_reasoning import TemplateReasoning
from ..tokenizers.base import Fragment, Tokenizer
from .messages import Message, Tools, has_tool_calls, normalize
from .own_text import OwnText
from .planning import Planner
from .template import ChatTemplate, Messages
from .token_parts import TokenParts
from .tools.known_formats import HERMES
from .tools.tool_format import ToolFormat

DEFAULT, TOOL_USE = "default", "tool_use"


@dataclass(frozen=True)
class ChatPrompt:
    """fragments: the prompt as plain text and ids. begins: where a completion of it does, between the marks of
    `reasoning`."""

    fragments: list[Fragment]
    reasoning: TemplateReasoning
    begins: Begins


class ChatPrompts:
    """The templates of one model by name. Not for use by several threads at once."""

    def __init__(
        self,
        sources: Mapping[str, str],
        tokenizer: Tokenizer,
        tool_format: Callable[[str], ToolFormat | None] = lambda source: None,
        reasoning: str = "auto",
    ) -> None:
        """tool_format: how a template's model writes calls. reasoning: the name of how it marks its thinking, see
        `thoughts.marks`. A template is compiled when it is first needed."""
        self._sources = sources
        self._tokenizer = tokenizer
        self._tool_format = tool_format
        self._reasoning = reasoning
        self._planners: dict[str, Planner] = {}

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
        return self.prompt(
            messages,
            tools,
            add_generation_prompt,
            continue_final_message,
            lambda _: template_kwargs,
            allow_control=allow_control,
        ).fragments

    def prompt(
        self,
        messages: Messages,
        tools: Tools | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Callable[[TemplateReasoning], Mapping[str, Any]],
        *,
        allow_control: bool = False,
    ) -> ChatPrompt:
        """As `render`, with what there is to know of the model's thinking. template_kwargs: made for the template that
        renders."""
        parts = TokenParts()
        normal = normalize(messages, stand_in=parts.stand_in)
        planner = self._planner(tools)
        reasoning = planner.reasoning
        normal = reasoning.with_own_field(normal)
        kwargs = {**template_kwargs(reasoning)}
        text = self._text(planner, normal, tools, add_generation_prompt, continue_final_message, kwargs)
        fragments: list[Fragment] = []
        for piece in parts.split(text):
            is_text = isinstance(piece, str)
            fragments += planner.template.fragments(piece, allow_control=allow_control) if is_text else piece
        last = normal[-1]["content"] if continue_final_message else ""
        return ChatPrompt(fragments, reasoning, reasoning.continued(last, text))

    def reasoning(self) -> TemplateReasoning:
        """How the usual template deals with thinking. Raises TemplateError."""
        return self._planner(None).reasoning

    def _text(
        self,
        planner: Planner,
        messages: Sequence[Message],
        tools: Tools | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: dict[str, Any],
    ) -> OwnText:
        def rendered(shown: Sequence[Message], shown_tools: Tools | None) -> OwnText:
            shown_tools = shown_tools or planner.no_tools
            return planner.template.text(shown, shown_tools, add_generation_prompt, continue_final_message, kwargs)

        opens = add_generation_prompt and not continue_final_message
        fold = planner.fold(messages, tools, kwargs, opens=opens)
        try:
            return rendered(*fold(planner.own_roles(messages), tools))
        except TemplateRefusal:
            raise
        except TemplateError:
            if not (tools or has_tool_calls(messages)):
                raise
            for way in planner.ways_around(messages, tools, kwargs, opens=opens):
                with suppress(TemplateError):
                    return rendered(*way)
            raise

    def _planner(self, tools: Tools | None) -> Planner:
        name = TOOL_USE if tools and TOOL_USE in self._sources else DEFAULT
        if name not in self._sources:
            raise TemplateError(f"none of the model's chat templates ({', '.join(self._sources)}) is the default")
        if name not in self._planners:
            source = self._sources[name]
            style = self._tool_format(source) or HERMES
            template = ChatTemplate(source, self._tokenizer)
            self._planners[name] = Planner(template, style, self._reasoning, self._tokenizer)
        return self._planners[name]
