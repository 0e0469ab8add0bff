"""The model families that Sapwood can run. A new family is one file and one line here."""

from __future__ import annotations

from ...errors import UnsupportedModel
from .family import Family
from .gemma2 import GEMMA2
from .gemma3 import GEMMA3
from .llama import LLAMA
from .mistral import MISTRAL
from .qwen2 import QWEN2
from .qwen3 import QWEN3

FAMILIES: dict[str, Family] = {
    name: family
    for family in (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3)
    for name in (family.name, family.hf_name)
    if name
}


def family_of(architecture: object) -> Family:
    """The family of that name. Raises UnsupportedModel with the names that there are."""
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise UnsupportedModel(
            f"the architecture {architecture!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    return family
