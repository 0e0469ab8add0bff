"""What a request to render a conversation may ask for, shared by `Engine.render` and the server's /render."""

from __future__ import annotations

from typing import Any

import msgspec

from ...wire.errors import InvalidRequest
from ...wire.requests import Chat
from .bodies import check_encodable
from .chats import check_chat
from .reasoning_fields import reasoning_options
from .tool_fields import calls_as_functions, tools_as_functions


class RenderRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation, to be turned into a prompt by the model's chat template; see `request_fields.GenerateRequest`.

    `add_generation_prompt` None means: unless `continue_final_message`.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = None
    allow_control_tokens: bool = False


class Rendering(msgspec.Struct, frozen=True):
    """prompt: runs of text and of control token ids; as the prompt of a request they give the same tokens as the
    conversation itself. text: all of it as text, control tokens included."""

    prompt: list[str | list[int]]
    text: str


def render_to_chat(request: RenderRequest, *, vocab_size: int) -> Chat:
    """The checked conversation. Raises InvalidRequest naming the field."""
    opens = request.add_generation_prompt
    if opens and request.continue_final_message:
        raise InvalidRequest.about(("continue_final_message",), "excludes add_generation_prompt.")
    check_chat(request.messages, request.tools, request.template_kwargs, vocab_size)
    check_encodable(msgspec.structs.asdict(request))
    return Chat(
        messages=calls_as_functions(request.messages),
        tools=tools_as_functions(request.tools),
        add_generation_prompt=not request.continue_final_message if opens is None else opens,
        continue_final_message=request.continue_final_message,
        template_kwargs=request.template_kwargs,
        allow_control_tokens=request.allow_control_tokens,
        reasoning=reasoning_options(request, None),
    )
