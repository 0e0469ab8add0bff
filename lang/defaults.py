"""The backend that programs run on unless told otherwise, and what may be given as one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .backends.base import Backend
from .backends.chat_pieces import Shapes
from .errors import ProgramMisuse

if TYPE_CHECKING:
    from ..managers.front.engine import Engine

    AnyBackend = Backend | Engine

_default: Backend | None = None
_shapes: weakref.WeakKeyDictionary[Engine, Shapes] = weakref.WeakKeyDictionary()  # of engines' chat templates


def set_default_backend(backend: AnyBackend | None) -> None:
    """What programs run on from now on, in this process, where `run` is not told otherwise; None for nothing."""
    global _default
    _default = None if backend is None else as_backend(backend)


def chosen_backend(backend: AnyBackend | None) -> Backend:
    """The given backend, or the default one. Raises ProgramMisuse where there is neither."""
    if backend is not None:
        return as_backend(backend)
    if _default is None:
        raise ProgramMisuse("There is no backend: give backend=… to the run, or call set_default_backend before.")
    return _default


def as_backend(backend: Any) -> Backend:
    """A backend as it is, or an Engine as one. Raises ProgramMisuse for anything else."""
    if isinstance(backend, Backend):
        return backend
    from ..managers.front.engine import Engine
    from .backends.engine import EngineBackend

    if not isinstance(backend, Engine):
        text = "An Engine, a RuntimeEndpoint, an OpenAI or an Anthropic can be a backend"
        raise ProgramMisuse(f"{text}; not {type(backend).__name__}.")
    return EngineBackend(backend, _shapes.setdefault(backend, Shapes()))


def flush_cache(backend: AnyBackend | None = None) -> int:
    """Forget every cached prefix of the backend (the default one) that is not in use; how many tokens that freed."""
    return chosen_backend(backend).flush_cache()
