"""The native endpoints about tokens: /tokenize, /detokenize, /tokenizer_info and /apply-template, in the shapes of vLLM
and of llama.cpp. Nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from ...front.requests.ranges import check_ids
from ...front.requests.render import render_to_chat
from ...front.requests.tokenize import TokenizeRequest, tokenize_name, tokenize_to_submit
from ...wire.errors import InvalidRequest
from ...wire.requests import Chat, Submit
from ..endpoints import Endpoint
from ..reading import understand
from ..responses import json_response
from ..server_state import STATE
from .render import RenderBody


class TokenizeBody(TokenizeRequest, kw_only=True, forbid_unknown_fields=True):
    """The body of /tokenize: see `managers.front.requests.tokenize.TokenizeRequest` for the other fields."""

    model: str | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None


class TokenPiece(msgspec.Struct, frozen=True):
    """piece: the token's text; its bytes where they are no whole characters."""

    id: int
    piece: str | list[int]


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """tokens: ids; with `with_pieces`, each with its text. max_model_len: most tokens of prompt and completion."""

    count: int | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    tokens: Sequence[int | TokenPiece]
    token_strs: list[str] | UnsetType | None = UNSET


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    """The text that the tokens make, control tokens included; `content` is what llama.cpp calls it."""

    prompt: str
    content: str


class TokenizerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Null is what the tokenizer does not have. add_bos_token: whether BOS comes before a text by itself."""

    tokenizer_class: str = "sapwood"
    model_max_length: int
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    bos_token_id: int | None
    eos_token_ids: list[int]
    add_bos_token: bool
    chat_template: str | None


class AppliedTemplate(msgspec.Struct, frozen=True):
    """prompt: the conversation as text, control tokens included."""

    prompt: str


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize."""
    state = request.app[STATE]
    front = state.require_ready()

    def understood(body: TokenizeBody) -> tuple[TokenizeBody, Submit]:
        state.check_model(body.model)
        return body, tokenize_to_submit(body, vocab_size=front.info.model.vocab_size)

    body, submit = await understand(request, TokenizeBody, understood)
    if submit.prompt in ([""], [[], ""]):
        ids, pieces = [], []  # an empty text is no prompt, but has no tokens either
    else:
        try:
            found = await front.tokenize(submit)
        except InvalidRequest as error:
            raise error.renamed(tokenize_name) from None
        ids, pieces = found.token_ids, found.pieces
    texts = [each.decode("utf-8", "replace") for each in pieces]
    if body.content is not None:
        shown = [TokenPiece(i, _piece(each)) for i, each in zip(ids, pieces)] if body.with_pieces else ids
        return json_response(TokenizeAnswer(tokens=shown, token_strs=texts if body.return_token_strs else UNSET))
    strings = texts if body.return_token_strs or body.with_pieces else None
    limit = front.info.max_context
    return json_response(TokenizeAnswer(count=len(ids), max_model_len=limit, tokens=ids, token_strs=strings))


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize."""
    state = request.app[STATE]
    front = state.require_ready()

    def understood(body: DetokenizeBody) -> list[int]:
        state.check_model(body.model)
        check_ids(("tokens",), body.tokens, front.info.model.vocab_size)
        return body.tokens

    found = await front.detokenize(await understand(request, DetokenizeBody, understood))
    text = b"".join(found.pieces).decode("utf-8", "replace")
    return json_response(DetokenizeAnswer(text, text))


async def tokenizer_info(request: web.Request) -> web.Response:
    """GET /tokenizer_info."""
    front = request.app[STATE].require_ready()
    info = await front.tokenizer_info()
    named = info.named_tokens
    answer = TokenizerAnswer(
        model_max_length=front.info.max_context,
        vocab_size=info.vocab_size,
        bos_token_id=info.bos_id,
        eos_token_ids=info.eos_ids,
        add_bos_token=info.adds_bos,
        chat_template=info.chat_template or None,
        bos_token=named.get("bos_token") or None,
        eos_token=named.get("eos_token") or None,
        pad_token=named.get("pad_token") or None,
        unk_token=named.get("unk_token") or None,
    )
    return json_response(answer)


async def apply_template(request: web.Request) -> web.Response:
    """POST /apply-template."""
    state = request.app[STATE]
    front = state.require_ready()

    def understood(body: RenderBody) -> Chat:
        state.check_model(body.model)
        return render_to_chat(body, vocab_size=front.info.model.vocab_size)

    rendered = await front.render(await understand(request, RenderBody, understood))
    return json_response(AppliedTemplate(rendered.text))


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


ENDPOINTS = (
    Endpoint("POST", "/tokenize", tokenize, "The tokens of a text or a conversation", TokenizeBody, TokenizeAnswer),
    Endpoint("POST", "/detokenize", detokenize, "The text of tokens", DetokenizeBody, DetokenizeAnswer),
    Endpoint("GET", "/tokenizer_info", tokenizer_info, "What kind of tokenizer it is", answer=TokenizerAnswer),
    Endpoint("POST", "/apply-template", apply_template, "A conversation as text", RenderBody, AppliedTemplate),
)
