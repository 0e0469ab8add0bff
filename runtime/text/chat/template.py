"""A model's chat template: conversations to token ids, with control tokens only where the template itself puts them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import TemplateError
from ..tokenizers.base import Fragment, Tokenizer
from .control_text import ControlText, Placeholders, map_strings
from .messages import has_text_arguments, normalize
from .sandbox import TemplateProgram

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Conversation:
    """What users give a template; `placeholders` stand for what is hidden in it."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    template_kwargs: Mapping[str, Any]
    placeholders: Placeholders = field(default_factory=lambda: Placeholders(""), compare=False)


class ChatTemplate:
    """A Jinja template in a sandbox, with the globals, filters and variables that Hugging Face's templates rely on.

    Text in messages, tools and `template_kwargs` never becomes a control token and never completes one, neither by
    itself nor together with the text around it; elsewhere the ids equal transformers' `apply_chat_template`.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises TemplateError for a template that does not compile."""
        self._tokenizer = tokenizer
        self._program = TemplateProgram(source, Placeholders(source).tojson)
        self._source = source
        texts = {tokenizer.token_bytes(i).decode("utf-8", "replace") for i in tokenizer.control_ids}
        self._control = ControlText(texts - {""})
        self._words = self._program.words | _ROLES

    def encode(
        self,
        messages: Messages,
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] = {},
        *,
        allow_control: bool = False,
    ) -> list[int]:
        """The prompt's token ids. With `allow_control`, users' text may become control tokens.

        messages, tools: as OpenAI's API has them (see `chat_messages.normalize`); an empty `tools` is none.
        continue_final_message: the prompt ends with the final message's text, and the model goes on from there; it
        cannot be combined with `add_generation_prompt`.
        Raises TemplateError for a conversation that the template, or `normalize`, refuses, and for all that goes wrong.
        """
        fragments = self.render(
            messages, tools, add_generation_prompt, continue_final_message, template_kwargs, allow_control=allow_control
        )
        return self._tokenizer.encode_fragments(fragments)

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
        """The prompt as plain text and the ids of control tokens; arguments as in `encode`."""
        if continue_final_message and add_generation_prompt:
            raise TemplateError("continue_final_message and add_generation_prompt exclude each other; set one to false")
        reserved = sorted(_OWN_VARIABLES.intersection(template_kwargs))
        if reserved:
            raise TemplateError(f"template_kwargs may not set {', '.join(reserved)}: it has a field of its own")

        def attempt(parse_arguments: bool) -> list[Fragment]:
            normal = normalize(messages, parse_arguments=parse_arguments)
            conversation = _Conversation(normal, list(tools) if tools else None, template_kwargs)
            if allow_control:
                shown = self._hide(conversation, lambda string: set())
                return self._fragments(shown, add_generation_prompt, continue_final_message)
            return self._protected(conversation, add_generation_prompt, continue_final_message)

        try:
            return attempt(parse_arguments=True)
        except TemplateError:
            # Most templates expect arguments as an object, some can only join text to text.
            if not has_text_arguments(messages):
                raise
            return attempt(parse_arguments=False)

    def _protected(self, conversation: _Conversation, generate: bool, go_on: bool) -> list[Fragment]:
        """Renders with as little hidden from the template as it takes, and checks that by hiding much more.

        A template that cuts users' text up can bring parts together that were harmless apart. With every character
        hidden that any control token begins or ends with, that gives no control tokens; if it makes a difference, that
        rendering counts.
        """
        light = self._hide(conversation, self._control.critical)
        strict = self._hide(conversation, self._control.edges_and_critical)
        fragments = self._fragments(light, generate, go_on)
        if strict == light:
            return fragments
        check = self._fragments(strict, generate, go_on)
        return fragments if _ids(fragments) == _ids(check) else check

    def _hide(self, conversation: _Conversation, positions: Callable[[str], set[int]]) -> _Conversation:
        """The conversation with the characters at `positions` of every user's string hidden from the template."""
        try:
            users = [conversation.messages, conversation.tools, dict(conversation.template_kwargs)]
            placeholders = Placeholders(self._source + json.dumps(users, ensure_ascii=False))
            hidden = map_strings(
                users,
                lambda string: placeholders.hide(string, positions(string)),
                self._words,
                lambda word: not self._control.whole(word),
            )
        except (RecursionError, TypeError, ValueError) as error:
            raise TemplateError(f"the conversation is not plain JSON data: {error}") from error
        messages, tools, template_kwargs = hidden
        return _Conversation(messages, tools, template_kwargs, placeholders)

    def _fragments(self, conversation: _Conversation, generate: bool, go_on: bool) -> list[Fragment]:
        """The template's text for a conversation, split at control tokens, with what was hidden put back."""
        messages, placeholders = conversation.messages, conversation.placeholders
        end = placeholders.fresh()
        if go_on:
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + end + " "}]
        variables = {
            "documents": None,
            **self._tokenizer.named_tokens,
            **conversation.template_kwargs,
            "messages": messages,
            "tools": conversation.tools,
            "add_generation_prompt": generate,
        }
        text = self._program.render(variables, placeholders.tojson)
        fragments = self._tokenizer.split_control(_up_to(text, end) if go_on else text)
        return [f if isinstance(f, int) else placeholders.restore(f) for f in fragments]


def _up_to(text: str, end: str) -> str:
    """The text before the mark `end`; where the template trimmed the space after it, trailing space goes too."""
    head, mark, tail = text.rpartition(end)
    if not mark:
        raise TemplateError("continue_final_message: the template leaves out the final message's text")
    return head if tail.startswith(" ") else head.rstrip()


def _ids(fragments: list[Fragment]) -> list[int]:
    return [fragment for fragment in fragments if isinstance(fragment, int)]
