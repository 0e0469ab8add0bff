"""What of objects goes into a grammar: properties by name and by pattern, counts of them, and objects that are closed
to the properties that are named. Whatever does not is left to checks.
"""

from __future__ import annotations

from collections.abc import Callable

from ...grammar.patterns import to_engine, to_wide
from ..declare_names import choices_of_names
from ..document import Json
from ..finite_names import MAX_COUNTED, possible_names
from ..normal import Normal
from ..validation import matcher, matcher_of_wide
from .lowered import MERGING, Lowered, LoweringEffort
from .names import evaluated_names, named_properties, names_pattern
from .scalars import pattern_fits


class ObjectLowering:
    """The objects of one lowering. Where there are two, view and node are those of `lower`.

    needs_any: whether a definition of "any" value is referred to although `anything` does not.
    """

    def __init__(
        self,
        normal: Normal,
        effort: LoweringEffort,
        out: Lowered,
        definite: Callable[[dict[str, Json], Json], Json],
        *,
        anything: Json,
        bound: bool,
    ) -> None:
        """definite: lowers a schema inside another (the owner) that applies to its value for certain.

        anything: what stands for a value of which the schema says nothing; True where it has no bounds. bound: whether
        such a value has them where no other schema can be merged into it.
        """
        self._normal = normal
        self._effort = effort
        self._out = out
        self._definite = definite
        self._anything = anything
        self._bound = bound
        self.needs_any = False

    def lower(self, view: dict[str, Json], node: dict[str, Json], out: dict[str, Json], *, only: bool) -> list[Json]:
        """Into `out`; what it returns is to stand beside the rest."""
        patterns = self._pattern_properties(view, node, out)
        if "additionalProperties" in view:
            rest = self._definite(node, view["additionalProperties"])
            if patterns:
                out["additionalProperties"] = rest
            else:
                self._out.leave(node, "additionalProperties")
        elif only and self._anything is not True and "patternProperties" not in view:
            out["additionalProperties"] = dict(self._anything)
        extra = self._counts(view, node, out)
        if "propertyNames" in view:
            self._property_names(view, node, out)
        return extra

    def _counts(self, view: dict[str, Json], node: dict[str, Json], out: dict[str, Json]) -> list[Json]:
        """The engine counts properties only where each that is declared is required; the others are chosen from."""
        closed = view.get("additionalProperties") is False and not view.keys() & {"patternProperties", "propertyNames"}
        choices = choices_of_names(view) if closed and self._effort.logic else None
        if choices is not None:
            only = [each[0] for each in choices if len(each) == 1]
            return only + [{"anyOf": each} for each in choices if len(each) > 1]
        if self._effort.counts and not view.get("properties", {}).keys() - set(view.get("required", [])):
            names = possible_names(view, MAX_COUNTED)
            if names is not None:  # else an object could come to a comma after which no name is left
                out["maxProperties"] = len(names)
        if "maxProperties" in view:
            if self._effort.counts:
                out["maxProperties"] = min(view["maxProperties"], out.get("maxProperties", view["maxProperties"]))
            else:
                self._out.leave(node, "maxProperties")
        if view.get("minProperties", 0) > len(view.get("required", [])):
            if self._effort.counts:
                out["minProperties"] = view["minProperties"]  # no name comes twice: names are compared as they come
            else:
                self._out.leave(node, "minProperties")
        return []

    def _property_names(self, view: dict[str, Json], node: dict[str, Json], out: dict[str, Json]) -> None:
        """Names that a pattern describes are pattern properties; whatever else is said of names is left to checks."""
        names = view["propertyNames"]
        pattern = names_pattern(names)
        may = self._effort.pattern_properties and self._effort.patterns and "patternProperties" not in view
        if pattern is None or not may or not pattern_fits(pattern):
            self._out.leave(node, "propertyNames")
            return
        rest = out.pop("additionalProperties", True)
        out["additionalProperties"] = False
        if rest is not False:
            out["patternProperties"] = {to_engine(pattern): rest}
        declared = out.get("properties", {})
        found = matcher(pattern)
        out["properties"] = {name: part if found(name) else False for name, part in declared.items()}

    def _pattern_properties(self, view: dict[str, Json], node: dict[str, Json], out: dict[str, Json]) -> bool:
        """Whether all of them are in the grammar."""
        lowered = {}
        for pattern, part in view.get("patternProperties", {}).items():
            may = self._effort.pattern_properties and self._effort.patterns
            if may and pattern_fits(pattern):
                lowered[to_engine(pattern)] = self._definite(node, part)
            elif may and self._names_are_checked(pattern, view, node):
                lowered[to_wide(pattern)] = self._definite(node, part)
            else:
                self._out.leave(node, "patternProperties")
                return False
        if lowered:
            out["patternProperties"] = lowered
        return True

    def _names_are_checked(self, pattern: str, view: dict[str, Json], node: dict[str, Json]) -> bool:
        """Whether the grammar may find more names than `pattern`, as names are checked one by one as they come.

        It may where all other names are forbidden; the schema then gets a `propertyNames` that says the same.
        """
        declared = view.get("properties", {})
        wide, exact = matcher_of_wide(pattern), matcher(pattern)
        if view.get("additionalProperties") is not False or "propertyNames" in view:
            return False
        if any(wide(name) and not exact(name) for name in declared):
            return False
        patterns: list[Json] = [{"pattern": each} for each in view["patternProperties"]]
        node["propertyNames"] = {"anyOf": [{"enum": list(declared)}, *patterns]}
        self._out.leave(node, "propertyNames")
        return True

    def unevaluated(self, view: dict[str, Json], node: dict[str, Json]) -> list[Json]:
        """A schema that allows no more names than unevaluatedProperties does, to stand beside the rest."""
        if "unevaluatedProperties" not in view:
            return []
        found = evaluated_names(self._normal, node) if view["unevaluatedProperties"] is False else None
        if found is None or not self._effort.logic:
            self._out.leave(node, "unevaluatedProperties")
            return []
        names, always = found
        if not always:
            self._out.leave(node, "unevaluatedProperties")
        return [{"properties": names, "additionalProperties": False}]

    def closing(self, node: dict[str, Json], out: dict[str, Json]) -> list[Json]:
        """Keep objects to the properties that are named, in `out` itself or by a schema to stand beside it."""
        found = named_properties(self._normal, node)
        may = self._effort.pattern_properties and self._effort.patterns
        if found is None or not all(may and pattern_fits(pattern) for pattern in found.patterns):
            return []
        found_by_pattern = [matcher(pattern) for pattern in found.patterns]
        free = {
            name: self._free_value()
            for name, described in found.names.items()
            if not (described or any(finds(name) for finds in found_by_pattern))
        }
        if node.keys() & MERGING:
            closed = {"properties": {**dict.fromkeys(found.names, True), **free}, "additionalProperties": False}
            patterns = {to_engine(pattern): True for pattern in found.patterns}
            return [{**closed, "patternProperties": patterns} if patterns else closed]
        if "additionalProperties" not in node:
            out.update({"properties": {**out.get("properties", {}), **free}, "additionalProperties": False})
        return []

    def _free_value(self) -> Json:
        """For a property that is named without a word about its value."""
        if not self._bound:
            return True
        self.needs_any = True
        return {"$ref": "#/$defs/any"}
