"""What Ollama's clients ask about models: which there are, what they are, what is loaded. Models are neither fetched
nor made here; who asks for that is told so."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from importlib.metadata import version as installed
from typing import Any

import msgspec
from aiohttp import web

from ..endpoints import Endpoint, Handler
from ..errors import Answer, ErrorDetail
from ..reading import understand
from ..responses import json_response
from ..server_state import STATE, ServerState
from .ollama_answers import ollama_error, stamp

TAG = ":latest"
_NEVER = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


class OllamaDetails(msgspec.Struct, frozen=True):
    """What kind of model it is."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaTag(msgspec.Struct, frozen=True, kw_only=True):
    """A model. size: of its weights, in bytes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTags(msgspec.Struct, frozen=True):
    models: list[OllamaTag]


class OllamaLoaded(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is loaded, which it stays."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaProcesses(msgspec.Struct, frozen=True):
    models: list[OllamaLoaded]


class OllamaVersion(msgspec.Struct, frozen=True):
    """version: of the API that is spoken, for clients that compare it. sapwood: the server's own."""

    version: str
    sapwood: str


class ShowBody(msgspec.Struct, forbid_unknown_fields=True):
    """name: the old name of `model`. verbose has no effect: vocabularies are not shown."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
    system: str | None = None
    template: str | None = None
    options: dict[str, Any] | None = None


class OllamaShown(msgspec.Struct, frozen=True, kw_only=True):
    """capabilities: what the model can do. model_info: by the names that GGUF has for them."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


async def tags(request: web.Request) -> web.Response:
    """GET /api/tags."""
    state = request.app[STATE]
    size = state.require_ready().info.model.weight_bytes
    modified, digest, details = stamp(state.created), _digest(state), _details(state)
    return json_response(
        OllamaTags(
            [
                OllamaTag(name=name, model=name, modified_at=modified, size=size, digest=digest, details=details)
                for name in map(_tagged, state.model_names)
            ]
        )
    )


async def processes(request: web.Request) -> web.Response:
    """GET /api/ps."""
    state = request.app[STATE]
    info = state.require_ready().info
    name = _tagged(state.model_name)
    size = info.model.weight_bytes + info.model.kv_bytes
    loaded = OllamaLoaded(
        name=name,
        model=name,
        size=size,
        digest=_digest(state),
        details=_details(state),
        expires_at=stamp(_NEVER),
        size_vram=size if state.front.config.device == "cuda" else 0,
        context_length=info.max_context,
    )
    return json_response(OllamaProcesses([loaded]))


async def show(request: web.Request) -> web.Response:
    """POST /api/show."""
    state = request.app[STATE]
    front = state.require_ready()
    body = await understand(request, ShowBody, lambda body: body)
    state.check_model(body.model or body.name)
    info = front.info.model
    tokenizer = await front.tokenizer_info()
    template = tokenizer.chat_template
    family = info.architecture
    answer = OllamaShown(
        modelfile=f"# served by Sapwood\nFROM {state.model_name}\n",
        parameters="",
        template=template,
        details=_details(state),
        model_info={
            "general.architecture": family,
            "general.parameter_count": info.parameters,
            f"{family}.context_length": info.model_context,
            f"{family}.vocab_size": info.vocab_size,
        },
        capabilities=[
            "completion",
            *(["tools"] if template else []),
            *(["thinking"] if front.info.reasoning.thinks else []),
        ],
        modified_at=stamp(state.created),
    )
    return json_response(answer)


async def version(_: web.Request) -> web.Response:
    """GET /api/version."""
    return json_response(OllamaVersion("0.12.0", installed("sapwood")))


def _refusal(status: int, sentence: str) -> Handler:
    async def refuse(_: web.Request) -> web.Response:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return Answer(status, ErrorDetail(sentence, kind, None, "not_supported")).response(ollama_error)

    return refuse


def _tagged(name: str) -> str:
    return name if ":" in name else name + TAG


def _details(state: ServerState) -> OllamaDetails:
    info = state.front.info
    kind = "gguf" if info.path.suffix == ".gguf" else "safetensors"
    model = info.model
    return OllamaDetails("", kind, model.architecture, [model.architecture], _size(model.parameters), model.dtype)


def _size(parameters: int) -> str:
    """135M, 7.2B"""
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"


def _digest(state: ServerState) -> str:
    """Stands for the model: of its name and place, not of its weights, which may be many."""
    return hashlib.sha256(f"{state.model_name} {state.front.info.path}".encode()).hexdigest()


_EMBEDDINGS = "Embeddings need a model made for them, and the one that is served here is not."
_MODELS = "Models are not managed here: `sapwood pull` fetches one, and `sapwood serve --model` serves it."
_REFUSED = (
    ("POST", "embed", 404, _EMBEDDINGS),
    ("POST", "embeddings", 404, _EMBEDDINGS),
    ("POST", "pull", 404, _MODELS),
    ("POST", "push", 404, _MODELS),
    ("POST", "create", 404, _MODELS),
    ("POST", "copy", 404, _MODELS),
    ("DELETE", "delete", 404, _MODELS),
)


def _asked(
    method: str,
    name: str,
    handler: Handler,
    summary: str,
    answer: type[msgspec.Struct] | None,
    body: type[msgspec.Struct] | None = None,
    status: int = 200,
) -> Endpoint:
    summary = f"{summary}, as Ollama has it"
    return Endpoint(method, f"/api/{name}", handler, summary, body, answer, error=ollama_error, status=status)


ENDPOINTS = (
    _asked("GET", "tags", tags, "What is served", OllamaTags),
    _asked("GET", "ps", processes, "What is loaded", OllamaProcesses),
    _asked("POST", "show", show, "About the model", OllamaShown, ShowBody),
    _asked("GET", "version", version, "The version", OllamaVersion),
    *(
        _asked(method, name, _refusal(status, why), "Not supported", None, status=status)
        for method, name, status, why in _REFUSED
    ),
)
