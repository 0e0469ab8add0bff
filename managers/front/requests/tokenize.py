"""What a request to tokenize may ask for, in vLLM's and in llama.cpp's names."""

from __future__ import annotations

from typing import Any

import msgspec

from ....runtime.sampling.params import Sampling
from ...wire.errors import InvalidRequest, Path
from ...wire.requests import Chat, Submit
from .bodies import check_encodable
from .params import checked_request_id
from .render import RenderRequest, render_to_chat


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of prompt, messages and content is given. Text never becomes control tokens, unless it is one's text
    and nothing else, or `allow_control_tokens` (or `parse_special`) is true.

    prompt: text. messages: a conversation for the model's chat template. content: as prompt, at llama.cpp; the answer
    then has its form.
    add_special_tokens, add_special: BOS before the text, where the model's tokenizer puts one; the default is true for
    prompt and false for content. return_token_strs, with_pieces: the text of each token.
    """

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    allow_control_tokens: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


_CHAT = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


def tokenize_to_submit(request: TokenizeRequest, *, vocab_size: int) -> Submit:
    """The message whose prompt is meant; it is never computed. Raises InvalidRequest naming the field."""
    given = [name for name in ("prompt", "messages", "content") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequest("Give exactly one of prompt, messages and content.", given[1] if given else "prompt")
    for one, other in (("add_special_tokens", "add_special"), ("allow_control_tokens", "parse_special")):
        if None not in (getattr(request, one), getattr(request, other)):
            raise InvalidRequest(f"Give {one} or {other}, not both.", other)
    control = bool(request.allow_control_tokens or request.parse_special)
    special = request.add_special_tokens if request.add_special is None else request.add_special
    check_encodable(msgspec.structs.asdict(request))
    chat: Chat | None = None
    runs: list[str | list[int]] | None = None
    if request.messages is not None:
        if special:
            raise InvalidRequest.about(
                ("add_special_tokens",), "has no meaning for messages: the template writes them."
            )
        rendered = RenderRequest(
            messages=request.messages,
            tools=request.tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            template_kwargs=request.chat_template_kwargs or {},
            allow_control_tokens=control,
        )
        try:
            chat = render_to_chat(rendered, vocab_size=vocab_size)
        except InvalidRequest as error:
            raise error.renamed(tokenize_name) from None
    else:
        for name in _CHAT:
            if getattr(request, name):
                raise InvalidRequest.about((name,), "needs messages; it has no meaning for a text.")
        text = request.prompt if request.content is None else request.content
        special = request.content is None if special is None else special
        runs = [text or ""] if special else [[], text or ""]
    return Submit(
        request_id=checked_request_id(None, "tokens-"),
        sampling=Sampling(max_tokens=0, seed=0, temperature=0.0),
        prompt=runs,
        chat=chat,
        allow_control_tokens=control,
    )


def tokenize_name(path: Path) -> Path:
    """What a field is called here."""
    return ("chat_template_kwargs", *path[1:]) if path[0] == "template_kwargs" else path
