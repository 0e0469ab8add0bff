"""A model's chat template: conversations to token ids, with control tokens only where the template itself puts them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import TemplateError
from ..tokenizers.base import Fragment, Tokenizer
from .control_text import ControlText
from .messages import RESERVED, Message, Tools, has_tool_calls, normalize, with_arguments
from .own_text import OwnText, plain, tracked, written
from .sandbox import TemplateProgram

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_MARK = "\U0010fffe"  # a character without a meaning

Messages = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """A Jinja template in a sandbox, with the globals, filters and variables that Hugging Face's templates rely on.

    The text is the one of transformers' `apply_chat_template`, character for character. Control tokens are in it only
    where each of their characters is the template's own: text in messages, tools and `template_kwargs` never becomes
    one, and never completes one.

    typed_contents: whether the template is given contents as lists of one text part; some take no strings.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises TemplateError for a template that does not compile."""
        self.typed_contents = False
        self._tokenizer = tokenizer
        self._program = TemplateProgram(source)
        self._source = source
        self._control = ControlText(source, tokenizer)
        self._named_tokens = {name: written(text) for name, text in tokenizer.named_tokens.items()}
        # Some templates build control tokens from the role: those that there are count as the template's own words.
        self._roles = {word for word in self._program.words | _ROLES if not self._control.is_in(word)}

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
        """The prompt as plain text and the ids of control tokens. With `allow_control`, users' text may become such.

        messages, tools: as OpenAI's API has them (see `messages.normalize`); an empty `tools` is none.
        continue_final_message: the prompt ends with the final message's text, and the model goes on from there; it
        cannot be combined with `add_generation_prompt`.
        Raises TemplateError for a conversation that the template, or `normalize`, refuses, and for all that goes wrong.
        """
        text = self.text(
            normalize(messages), tools or None, add_generation_prompt, continue_final_message, template_kwargs
        )
        return self.fragments(text, allow_control=allow_control)

    def text(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] = {},
        *,
        deadline: float | None = None,
    ) -> OwnText:
        """The prompt as one text, which knows what in it is the template's own.

        messages: as `normalize` leaves them, and otherwise as they are. deadline: as in `TemplateProgram`.
        """
        if continue_final_message and add_generation_prompt:
            raise TemplateError("continue_final_message and add_generation_prompt exclude each other; set one to false")
        reserved = sorted(RESERVED.intersection(template_kwargs))
        if reserved:
            raise TemplateError(f"template_kwargs may not set {', '.join(reserved)}: it is no variable of templates")

        def attempt(*, as_objects: bool) -> OwnText:
            shown = [self._with_own_role(each) for each in with_arguments(messages, as_objects=as_objects)]
            variables = {
                "documents": None,
                **self._named_tokens,
                **template_kwargs,
                "messages": shown,
                "tools": None if tools is None else list(tools),
                "add_generation_prompt": add_generation_prompt,
            }
            if continue_final_message:
                return self._up_to_final_text(variables)
            return self._rendered(variables, deadline)

        try:
            return attempt(as_objects=True)
        except TemplateError:
            # Most templates expect arguments as an object, some can only join text to text.
            if not has_tool_calls(messages):
                raise
            return attempt(as_objects=False)

    def fragments(self, text: OwnText, *, allow_control: bool = False) -> list[Fragment]:
        """Such a text, or a piece of one, as plain text and the ids of control tokens."""
        return self._tokenizer.split_control(plain(text)) if allow_control else self._control.split(text)

    def names_role(self, role: str) -> bool:
        """Whether the template itself speaks of this role."""
        return role in self._program.words

    @property
    def words(self) -> frozenset[str]:
        """The texts that it is made of."""
        return self._program.words

    @property
    def variables(self) -> frozenset[str]:
        """The names that it reads and does not set."""
        return self._program.variables

    def _with_own_role(self, message: Message) -> Message:
        role = message["role"]
        return {**message, "role": written(role)} if role in self._roles else message

    def _rendered(self, variables: dict[str, Any], deadline: float | None = None) -> OwnText:
        if self.typed_contents:
            messages = [
                {**each, "content": [{"type": "text", "text": each["content"]}] if each["content"] else []}
                for each in variables["messages"]
            ]
            variables = {**variables, "messages": messages}
        return self._program.render(variables, deadline)

    def _up_to_final_text(self, variables: dict[str, Any]) -> OwnText:
        """The template's text up to the end of the final message's, which a mark in that message shows.

        Where the template trimmed the space after the mark, trailing space goes too.
        """
        mark = self._mark(variables)
        *before, last = variables["messages"]
        messages = [*before, {**last, "content": f"{last['content'] or ''}{mark} "}]
        text = self._rendered({**variables, "messages": messages})
        end = text.rfind(mark)
        if end < 0:
            raise TemplateError("continue_final_message: the template leaves out the final message's text")
        head = text[:end]
        return tracked(head if text.startswith(mark + " ", end) else head.rstrip())

    def _mark(self, variables: dict[str, Any]) -> str:
        """A text that is nowhere in the template and its data."""
        try:
            occurring = self._source + json.dumps(variables, ensure_ascii=False)
        except (RecursionError, TypeError, ValueError) as error:
            raise TemplateError(f"the conversation is not plain JSON data: {error}") from error
        mark = _MARK
        while mark in occurring:
            mark += _MARK
        return mark
