"""How errors leave the server: always JSON, in OpenAI's form or in that of the endpoint's own API, whatever went wrong.

It must never show a traceback or anything about the machine to a client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from ...runtime.errors import SapwoodError, TemplateError
from ..wire.errors import EngineDead, InvalidRequest, Overloaded, PromptTooLong, RequestAborted, RequestFailed
from .access import Unauthorized

RETRY_AFTER_SECONDS = 1
_MOST_CHARACTERS = 2000  # of a message, which may quote what a client sent


class ErrorDetail(msgspec.Struct, frozen=True):
    """What was wrong and what is allowed. `param` names the offending field, `code` is for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success, and of an error event within a stream."""

    error: ErrorDetail


ErrorShape = Callable[[int, ErrorDetail], msgspec.Struct]
"""What the body of an error is in one API, by its status and detail."""


def openai_error(_status: int, detail: ErrorDetail) -> ErrorBody:
    """OpenAI's form, and that of everything without one of its own."""
    return ErrorBody(detail)


@dataclass(frozen=True)
class Answer:
    """An error as it will be sent: the status (used unless a stream has begun), the detail and more headers."""

    status: int
    detail: ErrorDetail
    headers: dict[str, str] = field(default_factory=dict)

    def body(self, shape: ErrorShape = openai_error) -> bytes:
        """The JSON of the error."""
        message, param = _shortened(self.detail.message), self.detail.param
        detail = msgspec.structs.replace(self.detail, message=message, param=param and _shortened(param))
        return msgspec.json.encode(shape(self.status, detail))

    def response(self, shape: ErrorShape = openai_error) -> web.Response:
        """The error as a whole response."""
        return web.Response(
            status=self.status, body=self.body(shape), content_type="application/json", headers=self.headers or None
        )


def _shortened(text: str) -> str:
    """The two ends of a text that is very long."""
    half = _MOST_CHARACTERS // 2
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]} … {text[-half:]}"


class UnknownModel(SapwoodError):
    """The request names a model that this server does not serve (HTTP 404)."""


class UnknownPath(SapwoodError):
    """The server has no such path (HTTP 404)."""


class UnknownResponse(SapwoodError):
    """There is no such response, or item of one, for this tenant: HTTP 404 for a path, 400 for a field of a body."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unavailable(SapwoodError):
    """The server is still loading, is stopping, or has lost its engine (HTTP 503)."""


def answer_for(error: BaseException, *, stopping: bool = False) -> Answer:
    """The answer that an exception becomes. `stopping`: the server is shutting down, which explains an abort."""
    if isinstance(error, PromptTooLong):
        return Answer(400, ErrorDetail(str(error), "invalid_request_error", error.field, "context_length_exceeded"))
    if isinstance(error, InvalidRequest):
        return Answer(400, ErrorDetail(str(error), "invalid_request_error", error.field, "invalid_value"))
    if isinstance(error, TemplateError):
        return Answer(400, ErrorDetail(str(error), "invalid_request_error", "messages", "template_error"))
    if isinstance(error, UnknownModel):
        return Answer(404, ErrorDetail(str(error), "invalid_request_error", "model", "model_not_found"))
    if isinstance(error, UnknownPath):
        return Answer(404, ErrorDetail(str(error), "invalid_request_error", None, "not_found"))
    if isinstance(error, Unauthorized):
        detail = ErrorDetail(str(error), "authentication_error", None, "invalid_api_key")
        return Answer(401, detail, {"WWW-Authenticate": "Bearer"})
    if isinstance(error, UnknownResponse):
        is_previous = error.field == "previous_response_id"
        code = "previous_response_not_found" if is_previous else "not_found"
        status = 404 if error.field is None else 400
        return Answer(status, ErrorDetail(str(error), "invalid_request_error", error.field, code))
    if isinstance(error, Overloaded):
        return _retry_later(str(error), "overloaded")
    if isinstance(error, Unavailable):
        return _retry_later(str(error), "unavailable")
    if isinstance(error, EngineDead):
        return Answer(500, ErrorDetail(str(error), "server_error", None, "engine_dead"))
    if isinstance(error, RequestAborted):
        if stopping:
            return _retry_later("The server is shutting down; the request was aborted.", "shutting_down")
        return Answer(409, ErrorDetail(str(error) or "The request was aborted.", "aborted", None, "request_aborted"))
    if isinstance(error, RequestFailed):
        return Answer(500, ErrorDetail(str(error), "server_error", None, "request_failed"))
    if isinstance(error, web.HTTPException):
        return _http_answer(error)
    return Answer(500, ErrorDetail("Internal error; the server's log has the details.", "server_error", None, None))


def bad_http(complaint: str, status: int = 400) -> Answer:
    """The answer to what is not HTTP; of the parser's complaint the first line, without the client's bytes."""
    reason = complaint.partition("\n")[0].partition(": b")[0].strip(" :.")[:200]
    message = f"{reason or 'This is not a valid HTTP request'}."
    return Answer(status, ErrorDetail(message, "invalid_request_error", None, "bad_http"))


def _retry_later(message: str, code: str) -> Answer:
    return Answer(503, ErrorDetail(message, "server_error", None, code), {"Retry-After": str(RETRY_AFTER_SECONDS)})


def _http_answer(error: web.HTTPException) -> Answer:
    """aiohttp's own refusals: wrong method, oversized, undecodable or unfinished body."""
    if isinstance(error, web.HTTPBadRequest):
        return bad_http("")
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        message, code = f"{error.method} is not allowed here; allowed: {allowed}.", "method_not_allowed"
    elif isinstance(error, web.HTTPRequestEntityTooLarge):
        message, code = "The body is too large.", "body_too_large"
    elif isinstance(error, web.HTTPRequestTimeout):
        message, code = "The body stopped arriving before its end.", "body_timeout"
    elif isinstance(error, web.HTTPUnsupportedMediaType):
        message, code = "Compressed bodies are not supported; send it without Content-Encoding.", "not_supported"
    else:
        message, code = f"{error.reason}.", None
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return Answer(error.status, ErrorDetail(message, kind, None, code), headers)
