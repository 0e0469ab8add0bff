"""Turns a normalised schema into one that the engine enforces exactly or allows more than, and says which keywords are
left.

Whatever is left is enforced by `constrained.matching.checks` when a value closes. So the result may be wider than the
schema, but never narrower (but for the documented bounds on numbers and strings).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..grammar.patterns import to_engine, to_wide
from .disjoint import Disjointness
from .logic import Logic
from .names import evaluated_names, named_properties, names_pattern
from .normal import TYPES, Normal, parts
from .scalars import lower_number, lower_string, pattern_fits
from .sharing import share_leaves
from .validation import Validation, matcher, matcher_of_wide

Json = Any

_CLOSED = "-closed"  # ends the names of definitions whose objects have the properties only that are named
MAX_ITEMS = 1000  # a larger minItems or maxItems is checked, not counted by the engine
_STRINGS = {"pattern", "format", "minLength", "maxLength"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_MERGING = {"allOf", "anyOf", "oneOf", "$ref", "not", "if", "dependentRequired", "dependentSchemas"}
_MERGING |= {"unevaluatedProperties", "unevaluatedItems"}


@dataclass(frozen=True)
class Effort:
    """How much of a schema is put into the grammar. Each later entry of EFFORTS leaves more of it to checks."""

    bounds: bool = True  # default lengths where the schema says nothing about a value at all
    several: bool = True  # more than one restriction of a string
    ref_siblings: bool = True  # what stands beside $ref
    counts: bool = True  # minProperties, maxProperties
    pattern_properties: bool = True
    logic: bool = True  # rewritten if, not, dependentRequired, dependentSchemas
    patterns: bool = True


EFFORTS = (
    Effort(),
    Effort(bounds=False, counts=False),
    Effort(bounds=False, counts=False, several=False),
    Effort(bounds=False, counts=False, ref_siblings=False),
    Effort(bounds=False, counts=False, pattern_properties=False),
    Effort(bounds=False, counts=False, several=False, ref_siblings=False, pattern_properties=False, logic=False),
    Effort(False, False, False, False, False, False, False),
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


def lower(normal: Normal, validation: Validation, max_string: int, effort: Effort, *, extras: bool = True) -> Lowered:
    """normal's patterns have been checked. extras: objects may have properties that the schema does not name."""
    return _Lowering(normal, validation, max_string, effort, extras).run()


class _Lowering:
    def __init__(self, normal: Normal, validation: Validation, max_string: int, effort: Effort, extras: bool) -> None:
        self._extras = extras
        self._normal = normal
        self._validation = validation
        self._max_string = max_string
        self._effort = effort
        self._out = Lowered()
        self._free = False  # whether a bounded value of any kind is referred to where nothing else is bounded
        self._definitions: dict[str, bool] = {}  # those referred to: whether each is closed
        self._disjointness = Disjointness(normal, validation)
        self._merges, self._multiples = self._traits()
        self._logic = Logic(normal, self._disjointness, self._branch)

    def run(self) -> Lowered:
        schema = self._normal.schema
        if isinstance(schema, bool):
            self._out.grammar = self._any() if schema else False
        else:
            grammar = self._lower({key: value for key, value in schema.items() if key != "$defs"}, schema, True)
            definitions: dict[str, Json] = {}
            while missing := [name for name in self._definitions if name not in definitions]:
                for name in missing:
                    part = schema["$defs"][name.removesuffix(_CLOSED)]
                    closed = self._definitions[name]
                    definitions[name] = part if isinstance(part, bool) else self._lower(part, part, closed)
            self._out.grammar = {**grammar, "$defs": definitions} if isinstance(grammar, dict) else grammar
        if isinstance(self._out.grammar, dict) and (self._bounding or self._free):
            self._out.grammar.setdefault("$defs", {})["any"] = self._any_value()
        if isinstance(self._out.grammar, dict):
            share_leaves(self._out.grammar)
        return self._out

    # --- bounds on values of which the schema says nothing ------------------------------------------------------------

    @property
    def _bounding(self) -> bool:
        """Where schemas are merged, a bound on anything would have to be merged into everything."""
        return self._effort.bounds and not self._merges and self._max_string > 0

    def _any(self) -> Json:
        return {"$ref": "#/$defs/any"} if self._bounding else True

    def _any_value(self) -> Json:
        anything = {"$ref": "#/$defs/any"}
        number = lower_number({"type": "number"}, {"number"}, not self._multiples).keywords
        return {
            "anyOf": [
                {"type": ["null", "boolean"]},
                {"type": "number", **number},
                {"type": "string", "maxLength": self._max_string},
                {"type": "array", "items": anything},
                {"type": "object", "additionalProperties": anything},
            ]
        }

    # --- one schema -------------------------------------------------------------------------------------------------

    def _definite(self, owner: dict[str, Json], part: Json, whole: bool = True) -> Json:
        """Lower a schema that applies to its value for certain. whole: as in `_lower`."""
        if isinstance(part, bool):
            return self._any() if part else False
        self._out.definite.setdefault(id(owner), []).append(part)
        return self._lower(part, part, whole)

    def _branch(self, owner: dict[str, Json], part: Json, whole: bool = False) -> Json:
        """Lower a schema that may or may not apply. whole: as in `_lower`."""
        if isinstance(part, bool):
            return part
        self._out.branches.setdefault(id(owner), []).append(part)
        return self._lower(part, part, whole)

    def _reference(self, reference: str, whole: bool) -> str:
        """What refers to the definition in the grammar: one may stand there twice, closed and open."""
        closed = whole and not self._extras
        name = reference.removeprefix("#/$defs/") + (_CLOSED if closed else "")
        self._definitions[name] = closed
        return f"#/$defs/{name}"

    def _leave(self, node: dict[str, Json], *keywords: str) -> None:
        self._out.left.setdefault(id(node), set()).update(keywords)

    def _lower(self, view: dict[str, Json], node: dict[str, Json], whole: bool) -> Json:
        """view: the schema without what is handled elsewhere. node: the same as it stands in the normal form.

        whole: no other schema applies to the same value, so that an object may be closed here.
        """
        view = self._simple(view)
        if not view:
            return self._any()
        if "const" in view or "enum" in view:
            return self._finite(view, node)
        named = view.get("type", list(TYPES))
        kinds = {named} if isinstance(named, str) else set(named)
        out: dict[str, Json] = {}
        extra: list[Json] = []
        passed_on = whole and self._passes_on(view)
        closing = whole and not passed_on and "object" in kinds and not self._extras
        if not self._effort.ref_siblings:
            view = self._alone(view, node)
        for keyword, value in view.items():
            match keyword:
                case "type":
                    out["type"] = value
                case "$ref":
                    out["$ref"] = self._reference(value, passed_on)
                    self._out.definite.setdefault(id(node), []).append(self._normal.deref(view))
                case "allOf":
                    parts = [self._definite(node, part, passed_on) for part in value]
                    out.setdefault("allOf", []).extend(parts)
                case "anyOf":
                    out["anyOf"] = [self._branch(node, part, passed_on) for part in value]
                case "oneOf":
                    self._one_of(view, node, out, passed_on)
                case "properties" if "object" in kinds:
                    out["properties"] = {name: self._definite(node, part) for name, part in value.items()}
                case "required" if "object" in kinds:
                    out["required"] = value
        if "object" in kinds:
            self._objects(view, node, out, only="type" in view and not view.keys() & _MERGING)
        if "array" in kinds:
            self._arrays(view, node, out, only="type" in view and not view.keys() & _MERGING)
        if "string" in kinds:
            self._strings(view, node, out, extra, only_type=kinds == {"string"})
        if kinds & {"integer", "number"}:
            self._numbers(view, node, out, kinds & {"integer", "number"} if "type" in view else set())
        extra += self._unevaluated(view, node)
        extra += self._logic.extra(view, node, lambda keyword: self._leave(node, keyword), self._effort.logic)
        extra += self._closing(node, out) if closing else []
        if extra and "allOf" in out:  # what is added comes last, so that the schema's own order of properties stays
            return {"allOf": [out, *extra]}
        if extra:
            out["allOf"] = extra
        return out

    def _simple(self, view: dict[str, Json]) -> dict[str, Json]:
        """The same schema without keywords that say nothing: merging them in costs, and with recursion it fails."""
        kept = {key: value for key, value in view.items() if not _says_nothing(key, value)}
        if "type" in kept and any(key in kept for key in _MERGING):
            rest = {key: value for key, value in kept.items() if key in ("$ref", "allOf", "anyOf", "oneOf")}
            if rest and self._disjointness.types(rest) <= self._disjointness.types({"type": kept["type"]}):
                del kept["type"]
        return kept

    def _alone(self, view: dict[str, Json], node: dict[str, Json]) -> dict[str, Json]:
        """Of a schema that would be merged with what it refers to, only one of the two; the rest is left to checks."""
        for keyword in ("$ref", "allOf", "anyOf", "oneOf"):
            if keyword in view and (len(view) > 1 or keyword == "allOf"):
                value = view[keyword][:1] if keyword == "allOf" else view[keyword]
                self._leave(node, *(view.keys() - {keyword}), *(["allOf"] if value != view[keyword] else []))
                return {keyword: value}
        return view

    def _traits(self) -> tuple[bool, bool]:
        """Whether schemas are merged with others somewhere, and whether there is a multipleOf."""
        merges = multiples = False
        for part in parts(self._normal.schema):
            view = self._simple({key: value for key, value in part.items() if key != "$defs"})
            applicators = view.keys() & _MERGING
            merges |= bool(applicators & {"allOf", "not", "if", "dependentRequired", "dependentSchemas"})
            merges |= bool(applicators) and len(view) > 1
            multiples |= "multipleOf" in view
        return merges, multiples

    def _one_of(self, view: dict[str, Json], node: dict[str, Json], out: dict[str, Json], passed_on: bool) -> None:
        lowered, whole = self._logic.one_of(view, node, lambda owner, part: self._branch(owner, part, passed_on))
        if "anyOf" in view:
            out.setdefault("allOf", []).append(lowered)
        else:
            out.update(lowered)
        if not whole:
            self._leave(node, "oneOf")

    def _finite(self, view: dict[str, Json], node: dict[str, Json]) -> Json:
        """Exact, whatever else the schema says: its values are tried."""
        values = finite_values(view, node, self._validation)
        if any(_rounded(value) for value in values):
            self._leave(node, "const" if "const" in view else "enum")
            kept = [value for value in values if not _rounded(value)]
            return {"anyOf": [{"enum": kept}, {"type": "integer"}]} if kept else {"type": "integer"}
        return {"enum": values} if values else False

    def _strings(
        self, view: dict[str, Json], node: dict[str, Json], out: dict, extra: list, *, only_type: bool
    ) -> None:
        if not (only_type or view.keys() & _STRINGS):
            return
        found = lower_string(view, only_type, self._max_string, self._effort.patterns, self._effort.several)
        out.update(found.keywords)
        extra += found.extra
        if found.left:
            self._leave(node, *found.left)

    def _numbers(self, view: dict[str, Json], node: dict[str, Json], out: dict, kinds: set[str]) -> None:
        if not (kinds or view.keys() & _NUMBERS):
            return
        found = lower_number(view, kinds, not self._multiples)
        out.update(found.keywords)
        if found.left:
            self._leave(node, *found.left)

    # --- objects without other properties than those that are named ---------------------------------------------------

    def _passes_on(self, view: dict[str, Json]) -> bool:
        """Whether a schema says nothing itself, so that objects are closed in what it refers to or in its branches.

        Alternatives are closed one by one where only one of them can be meant; others add to each other.
        """
        if len(view) != 1:
            return False
        ((keyword, value),) = view.items()
        if keyword == "anyOf":
            return all(len(self._disjointness.types(part)) < len(self._disjointness.types(True)) for part in value)
        return keyword in ("$ref", "oneOf") or (keyword == "allOf" and len(value) == 1)

    def _closing(self, node: dict[str, Json], out: dict[str, Json]) -> list[Json]:
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
        if node.keys() & _MERGING:
            closed = {"properties": {**dict.fromkeys(found.names, True), **free}, "additionalProperties": False}
            patterns = {to_engine(pattern): True for pattern in found.patterns}
            return [{**closed, "patternProperties": patterns} if patterns else closed]
        if "additionalProperties" not in node:
            out.update({"properties": {**out.get("properties", {}), **free}, "additionalProperties": False})
        return []

    def _free_value(self) -> Json:
        """For a property that is named without a word about its value."""
        if not (self._effort.bounds and self._max_string):
            return True
        self._free = True
        return {"$ref": "#/$defs/any"}

    # --- objects and arrays -------------------------------------------------------------------------------------------

    def _objects(self, view: dict[str, Json], node: dict[str, Json], out: dict[str, Json], *, only: bool) -> None:
        patterns = self._pattern_properties(view, node, out)
        if "additionalProperties" in view:
            rest = self._definite(node, view["additionalProperties"])
            if patterns:
                out["additionalProperties"] = rest
            else:
                self._leave(node, "additionalProperties")
        elif only and self._bounding and "patternProperties" not in view:
            out["additionalProperties"] = self._any()
        closed = view.get("additionalProperties") is False and "patternProperties" not in view
        if "maxProperties" in view:
            if self._effort.counts:
                out["maxProperties"] = view["maxProperties"]
            else:
                self._leave(node, "maxProperties")
        if view.get("minProperties", 0) > len(view.get("required", [])):
            if self._effort.counts:
                out["minProperties"] = view["minProperties"]
            if not (self._effort.counts and closed):
                self._leave(node, "minProperties")  # the engine counts a name that comes twice as two
        if "propertyNames" in view:
            self._property_names(view, node, out)

    def _property_names(self, view: dict[str, Json], node: dict[str, Json], out: dict[str, Json]) -> None:
        """Names that a pattern describes are pattern properties; whatever else is said of names is left to checks."""
        names = view["propertyNames"]
        pattern = names_pattern(names)
        may = self._effort.pattern_properties and self._effort.patterns and "patternProperties" not in view
        if pattern is None or not may or not pattern_fits(pattern):
            self._leave(node, "propertyNames")
            return
        rest = out.pop("additionalProperties", True)
        out["additionalProperties"] = False
        if rest is not False:
            out["patternProperties"] = {to_engine(pattern): rest}
        declared = out.get("properties", {})
        found = matcher(pattern)
        out["properties"] = {name: part if found(name) else False for name, part in declared.items()}

    def _unevaluated(self, view: dict[str, Json], node: dict[str, Json]) -> list[Json]:
        """A schema that allows no more names than unevaluatedProperties does, to stand beside the rest."""
        if "unevaluatedProperties" not in view:
            return []
        found = evaluated_names(self._normal, node) if view["unevaluatedProperties"] is False else None
        if found is None or not self._effort.logic:
            self._leave(node, "unevaluatedProperties")
            return []
        names, always = found
        if not always:
            self._leave(node, "unevaluatedProperties")
        return [{"properties": names, "additionalProperties": False}]

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
                self._leave(node, "patternProperties")
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
        self._leave(node, "propertyNames")
        return True

    def _arrays(self, view: dict[str, Json], node: dict[str, Json], out: dict[str, Json], *, only: bool) -> None:
        if "prefixItems" in view:
            out["prefixItems"] = [self._definite(node, part) for part in view["prefixItems"]]
        if "items" in view:
            out["items"] = self._definite(node, view["items"])
        elif only and self._bounding:
            out["items"] = self._any()
        for keyword in ("minItems", "maxItems"):
            if keyword in view:
                if view[keyword] <= MAX_ITEMS:
                    out[keyword] = view[keyword]
                else:
                    self._leave(node, keyword)
        if view.get("uniqueItems") and view.get("maxItems", 2) > 1:
            self._leave(node, "uniqueItems")
        if "contains" in view:
            least = view.get("minContains", 1)
            if least or "maxContains" in view:
                self._leave(node, "contains")
            if least:
                out["minItems"] = max(min(least, MAX_ITEMS), out.get("minItems", 0))
        if "unevaluatedItems" in view and view["unevaluatedItems"] is not True:
            self._leave(node, "unevaluatedItems")


def finite_values(view: dict[str, Json], node: dict[str, Json], validation: Validation) -> list[Json]:
    """The values that a schema with const or enum allows: those it lists which all its other keywords allow, too."""
    listed = [view["const"]] if "const" in view else view["enum"]
    return [value for value in listed if validation.is_valid(node, value)]


def _rounded(value: Json) -> bool:
    """Whether a value holds a number that the engine would write differently."""
    if isinstance(value, dict):
        return any(_rounded(each) for each in value.values())
    if isinstance(value, list):
        return any(_rounded(each) for each in value)
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) > 1 << 53


def _says_nothing(keyword: str, value: Json) -> bool:
    match keyword:
        case "additionalProperties" | "items" | "propertyNames" | "unevaluatedProperties" | "unevaluatedItems":
            return value is True or value == {}
        case "properties" | "patternProperties" | "dependentSchemas" | "dependentRequired" | "required":
            return not value
        case "minItems" | "minLength" | "minProperties":
            return value == 0
        case "uniqueItems":
            return value is False
    return False
