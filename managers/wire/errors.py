"""Errors of the serving side: what a request, or the engine under it, can answer with."""

from ...runtime.errors import SapwoodError


class InvalidRequest(SapwoodError):
    """The request itself is wrong (HTTP 400). `field` names the offending field, when there is one."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Overloaded(SapwoodError):
    """The queue is full (HTTP 503); the request was not accepted and may be sent again later."""


class RequestAborted(SapwoodError):
    """The request was aborted by its owner or by shutdown before it finished."""


class RequestFailed(SapwoodError):
    """The request was accepted and could not be completed (HTTP 500); other requests are unharmed."""


class EngineDead(SapwoodError):
    """A child process is gone; nothing can be served until a new engine is started."""


class ConfigError(SapwoodError):
    """An engine option is unknown, of the wrong type or out of range; the message names the option."""
