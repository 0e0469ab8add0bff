"""The attention backends by name."""

from __future__ import annotations

from ..errors import UnsupportedModel
from .base import Attention
from .torch import TorchAttention

BACKENDS: dict[str, type[Attention]] = {TorchAttention.name: TorchAttention}


def backend_named(name: str) -> type[Attention]:
    """The backend of that name, or the best one here for "auto". Raises UnsupportedModel with the names there are."""
    if name == "auto":
        return TorchAttention
    backend = BACKENDS.get(name)
    if backend is None:
        raise UnsupportedModel(f"there is no attention backend {name!r} here; there are auto, {', '.join(BACKENDS)}")
    return backend
