"""Who may ask: the API keys of a server, and what is kept apart between them. Without keys everybody may.

It must never show a key, nor tell by the time it takes how much of one was right.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path

from ...runtime.errors import SapwoodError
from ..wire.errors import ConfigError

OPEN_PATHS = frozenset(("/health",))  # for whoever watches the server; preflights of browsers have no key either
_BEARER = "bearer "
_salt: ContextVar[str] = ContextVar("salt", default="")


class Unauthorized(SapwoodError):
    """The request has no key, or not one of the server's (HTTP 401)."""


class Access:
    """The keys, kept as digests."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    def admit(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Let the request pass, or raise Unauthorized. What it computes shares a cache with its own key's alone."""
        _salt.set("")
        if not self._digests:
            return
        given = _given_key(headers)
        digest = _digest(given or "")
        matches = [hmac.compare_digest(digest, each) for each in self._digests]  # all of them, whichever it is
        if given is not None and any(matches):
            _salt.set(hashlib.sha256(b"sapwood cache salt" + digest).hexdigest())
        elif method != "OPTIONS" and path.rstrip("/") not in OPEN_PATHS:
            sentence = "This is not a key of this server" if given is not None else "This server wants a key"
            raise Unauthorized(f"{sentence}: send it as Authorization: Bearer KEY, or as x-api-key.")


def salted(namespace: str) -> str:
    """The cache's namespace for the current request: the client's own, within that of its key."""
    salt = _salt.get()
    return f"{salt}:{namespace}" if salt else namespace


def read_keys(given: Iterable[str], file: str | None) -> list[str]:
    """The keys of the command line and of a file, one a line; blank lines and those that begin with # are none.

    Raises ConfigError. No keys at all are fine unless a file was named.
    """
    keys = list(given)
    if file is not None:
        try:
            lines = [line.strip() for line in Path(file).read_text("utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(f"--api-key-file: cannot read {file}: {reason}") from None
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise ConfigError(f"--api-key-file: {file} holds no key; it must have one on each line")
        keys += found
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError("--api-key: a key must be of printable ASCII characters without spaces, one at least")
    return keys


def _given_key(headers: Mapping[str, str]) -> str | None:
    authorization = headers.get("Authorization")
    if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return headers.get("X-Api-Key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
