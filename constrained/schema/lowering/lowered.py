"""What lowering a schema gives, and how much of a schema it tries to put into a grammar. Records only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..document import Json

MERGING = {"allOf", "anyOf", "oneOf", "$ref", "not", "if", "dependentRequired", "dependentSchemas"}
MERGING |= {"unevaluatedProperties", "unevaluatedItems"}
"""The keywords that apply other schemas to the same value."""


@dataclass(frozen=True)
class LoweringEffort:
    """How much of a schema is put into the grammar. Each later entry of EFFORTS leaves more of it to checks."""

    bounds: bool = True  # default lengths where the schema says nothing about a value at all
    several: bool = True  # more than one restriction of a string
    ref_siblings: bool = True  # what stands beside $ref
    counts: bool = True  # minProperties, maxProperties
    pattern_properties: bool = True
    logic: bool = True  # rewritten if, not, dependentRequired, dependentSchemas
    patterns: bool = True


EFFORTS = (
    LoweringEffort(),
    LoweringEffort(bounds=False, counts=False),
    LoweringEffort(bounds=False, counts=False, several=False),
    LoweringEffort(bounds=False, counts=False, ref_siblings=False),
    LoweringEffort(bounds=False, counts=False, pattern_properties=False),
    LoweringEffort(
        bounds=False, counts=False, several=False, ref_siblings=False, pattern_properties=False, logic=False
    ),
    LoweringEffort(False, False, False, False, False, False, False),
)


@dataclass
class Lowered:
    """grammar: the engine's schema. left: by id() of a schema object of the normal form, the keywords to be checked.

    definite: by the same, the schema objects inside it that are lowered and apply to what they stand for whatever else
    the value is. branches: those of which only some apply (anyOf, oneOf, if and the like).
    """

    grammar: Json = True
    left: dict[int, set[str]] = field(default_factory=dict)
    definite: dict[int, list[Json]] = field(default_factory=dict)
    branches: dict[int, list[Json]] = field(default_factory=dict)

    def leave(self, node: dict[str, Json], *keywords: str) -> None:
        """Note keywords of `node` that are to be checked."""
        self.left.setdefault(id(node), set()).update(keywords)
