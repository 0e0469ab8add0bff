"""What a normalised schema is: any draft's, in the words of Draft 2020-12, self-contained. Records only.

Its references are `#/$defs/NAME` only. `normalise` makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..spec import Unenforced
from .document import Json

MAX_PROPERTIES = 1000  # of one object: a mask takes longer with every property that may come next
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


@dataclass
class Normal:
    """A normalised schema.

    schema: with `$defs` where there are references. pointers: by the id() of each schema object in it, where that
    stands in the user's document. keywords: those that constrain, as the user spelled them. notes: what is annotation.
    draft: the one that the schema was written for.
    """

    schema: Json
    pointers: dict[int, str] = field(default_factory=dict)
    keywords: set[str] = field(default_factory=set)
    notes: list[Unenforced] = field(default_factory=list)
    draft: int = 2020

    def pointer(self, schema: Json) -> str:
        return self.pointers.get(id(schema), "")

    def deref(self, schema: Json) -> Json:
        """What a schema with `$ref` refers to."""
        return self.schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]


def parts(schema: Json) -> Iterator[Json]:
    """Every schema object of a normal form."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            yield part
            for keyword, value in part.items():
                if keyword in ("properties", "patternProperties", "dependentSchemas", "$defs"):
                    todo += value.values()
                elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
                    todo += value
                elif keyword not in ("enum", "const", "dependentRequired"):
                    todo.append(value)
