"""The model families that Sapwood can run. A new family is one file and one line here."""

from __future__ import annotations

from ..errors import UnsupportedModel
from .family import Family
from .gemma2 import GEMMA2
from .llama import LLAMA
from .mistral import MISTRAL
from .qwen2 import QWEN2

FAMILIES: dict[str, Family] = {family.name: family for family in (LLAMA, MISTRAL, QWEN2, GEMMA2)}


def family_of(architecture: object) -> Family:
    """The family of that name. Raises UnsupportedModel with the names that there are."""
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise UnsupportedModel(
            f"the architecture {architecture!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    return family
