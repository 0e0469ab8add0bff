"""What the handlers of one server share: the front, the metrics, who is open, and whether it can serve now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from ..front.front import Front
from ..wire.errors import InvalidRequest
from .access import Access, Origins
from .errors import Unavailable, UnknownModel
from .metrics import Metrics
from .responses_api.response_store import USUAL_LIMITS, StoreLimits

HEAD_SECONDS = 30.0
STALL_SECONDS = 30.0


class ServerState:
    """One per server. `phase` goes from "loading" to "ready", and ends as "stopping" or "dead"; `reason` says why."""

    def __init__(
        self,
        front: Front,
        model: str,
        *,
        access: Access | None = None,
        head_seconds: float = HEAD_SECONDS,
        stall_seconds: float = STALL_SECONDS,
        response_limits: StoreLimits = USUAL_LIMITS,
        names: Sequence[str] = (),
        strict_names: bool = False,
        origins: Sequence[str] = (),
    ) -> None:
        """access: who may ask; everybody by default.
        head_seconds: how long the head of a request may take to arrive.
        stall_seconds: how long a client may take no data, or send none of a body, before its request is ended.
        response_limits: of the responses that are kept.
        names: under which the model is served; none means the alias, the hub id, or the last part of the path.
        strict_names: refuse requests that name another model.
        origins: of the web pages whose scripts may ask (CORS); "*" is any."""
        self.response_limits = response_limits
        self.front = front
        self.access = access or Access()
        self.metrics = Metrics()
        self.created = int(time.time())
        self.head_seconds = head_seconds
        self.stall_seconds = stall_seconds
        self.large_bodies = asyncio.Lock()  # held while one is decoded and checked
        self.phase = "loading"
        self.reason = ""
        self._model = model
        self.model_names = tuple(dict.fromkeys(names)) or (_name_of(model),)  # once: the file may be moved later
        self.model_name = self.model_names[0]
        self.origins = Origins(origins)
        self.strict_names = strict_names
        self._open: dict[str, list[str]] = {}

    def set_phase(self, phase: str, reason: str) -> None:
        self.phase = phase
        self.reason = reason

    def require_ready(self) -> Front:
        """The front, once it can serve. Raises Unavailable, saying why not."""
        if self.phase == "ready":
            return self.front
        raise Unavailable("The model is still loading." if self.phase == "loading" else self.reason)

    def check_model(self, name: str | None) -> str:
        """The name that the answer to a request for this model gives: the same, where it is one of `model_names`, else
        the first of them. Raises UnknownModel for a name that is none of them where names are strict; the tag that
        Ollama's clients add does not count, and the `--model` text itself is one."""
        plain = name.removesuffix(":latest") if name is not None else None
        if plain is not None and plain in self.model_names:
            return plain
        if self.strict_names and name not in (None, self._model):
            served = " and ".join(map(repr, self.model_names))
            raise UnknownModel(f"The model {name!r} is not served here; served is {served}.")
        return self.model_name

    @contextmanager
    def opened(self, request_id: str, submit_ids: list[str]) -> Iterator[None]:
        """Make the request known to `/abort` while it is open. Raises InvalidRequest where its id is taken."""
        if request_id in self._open:
            raise InvalidRequest(f"A request with request_id {request_id!r} is still open.", "request_id")
        self._open[request_id] = submit_ids
        self.metrics.open_requests.inc()
        try:
            yield
        finally:
            del self._open[request_id]
            self.metrics.open_requests.dec()

    def abort(self, request_id: str) -> bool:
        """Abort everything that this HTTP request has submitted; False where no such request is open."""
        aborted = [self.front.abort(each) for each in self._open.get(request_id, ())]
        return any(aborted)


def _name_of(model: str) -> str:
    """The name under which it is served: the alias or hub id as given, or the last part of its path."""
    path = Path(model)
    return (path.stem if path.suffix == ".gguf" else path.name) if path.exists() else model


STATE: web.AppKey[ServerState] = web.AppKey("state", ServerState)
