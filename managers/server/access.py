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


class Origins:
    """The web pages whose scripts may ask, by their origins (CORS); none unless the server is told so."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """allowed: such as https://example.org; "*" is any."""
        self._allowed = frozenset(each.lower().rstrip("/") for each in allowed)

    def admit(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What an answer says, so that the asking page's script may read it; nothing where no page of these asks."""
        origin = headers.get("Origin")
        if origin is None or not self._allowed & {"*", origin.lower()}:
            return {}
        return {
            "Access-Control-Allow-Origin": "*" if "*" in self._allowed else origin,
            "Access-Control-Expose-Headers": "*",
            "Vary": "Origin",
        }

    def preflight(self, headers: Mapping[str, str], methods: Iterable[str]) -> dict[str, str]:
        """The answer to a browser that asks what a script may send; nothing where it may send nothing."""
        admitted = self.admit(headers)
        if not admitted:
            return {}
        asked = headers.get("Access-Control-Request-Headers") or "Authorization, Content-Type"
        private = "Access-Control-Request-Private-Network" in headers  # from a public page to a server at home
        return {
            **admitted,
            "Access-Control-Allow-Methods": ", ".join(sorted({*methods, "OPTIONS"})),
            "Access-Control-Allow-Headers": asked,
            "Access-Control-Max-Age": "86400",
            **({"Access-Control-Allow-Private-Network": "true"} if private else {}),
        }


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
