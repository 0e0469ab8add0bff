"""Sapwood: a prefix-sharing LLM serving runtime. Names are loaded on first use, so that importing stays cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .managers.engine import Engine as Engine

__version__ = "0.1.0"
__all__ = ["Engine", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from .managers.engine import Engine

        return Engine
    raise AttributeError(f"module 'sapwood' has no attribute {name!r}")
