"""Turns a normalised schema into one that the engine enforces exactly or allows more than, and says which keywords are
left.

Whatever is left is enforced by `constrained.matching.checks` when a value closes. So the result may be wider than the
schema, but never narrower (but for the documented bounds on numbers and strings).
"""

from __future__ import annotations

from ..document import Json
from ..normal import TYPES, Normal, parts
from ..validation import Validation
from .disjoint import Disjointness
from .logic import Logic
from .lowered import MERGING, Lowered, LoweringEffort
from .objects import ObjectLowering
from .scalars import lower_number, lower_string
from .shared_leaves import share_leaves

_CLOSED = "-closed"  # ends the names of definitions whose objects have the properties only that are named
MAX_ITEMS = 1000  # a larger minItems or maxItems is checked, not counted by the engine
_STRINGS = {"pattern", "format", "minLength", "maxLength"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}


def lower(
    normal: Normal, validation: Validation, max_string: int, effort: LoweringEffort, *, extras: bool = True
) -> Lowered:
    """normal's patterns have been checked. extras: objects may have properties that the schema does not name."""
    return _Lowering(normal, validation, max_string, effort, extras).run()


class _Lowering:
    def __init__(
        self, normal: Normal, validation: Validation, max_string: int, effort: LoweringEffort, extras: bool
    ) -> None:
        self._extras = extras
        self._normal = normal
        self._validation = validation
        self._max_string = max_string
        self._effort = effort
        self._out = Lowered()
        self._definitions: dict[str, bool] = {}  # those referred to: whether each is closed
        self._disjointness = Disjointness(normal, validation)
        self._merges, self._multiples = self._traits()
        self._logic = Logic(normal, self._disjointness, self._branch)
        bound = effort.bounds and max_string > 0
        self._anything: Json = {"$ref": "#/$defs/any"} if bound and not self._merges else True
        self._objects = ObjectLowering(normal, effort, self._out, self._definite, anything=self._anything, bound=bound)

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
        if isinstance(self._out.grammar, dict) and (self._anything is not True or self._objects.needs_any):
            self._out.grammar.setdefault("$defs", {})["any"] = self._any_value()
        if isinstance(self._out.grammar, dict):
            share_leaves(self._out.grammar)
        return self._out

    # --- bounds on values of which the schema says nothing ------------------------------------------------------------
    # Where schemas are merged there are none: a bound on anything would have to be merged into everything.

    def _any(self) -> Json:
        return self._anything if self._anything is True else dict(self._anything)

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
            extra += self._objects.lower(view, node, out, only="type" in view and not view.keys() & MERGING)
        if "array" in kinds:
            self._arrays(view, node, out, only="type" in view and not view.keys() & MERGING)
        if "string" in kinds:
            self._strings(view, node, out, extra, only_type=kinds == {"string"})
        if kinds & {"integer", "number"}:
            self._numbers(view, node, out, kinds & {"integer", "number"} if "type" in view else set())
        extra += self._objects.unevaluated(view, node)
        extra += self._logic.extra(view, node, lambda keyword: self._out.leave(node, keyword), self._effort.logic)
        extra += self._objects.closing(node, out) if closing else []
        if extra and "allOf" in out:  # what is added comes last, so that the schema's own order of properties stays
            return {"allOf": [out, *extra]}
        if extra:
            out["allOf"] = extra
        return out

    def _simple(self, view: dict[str, Json]) -> dict[str, Json]:
        """The same schema without keywords that say nothing: merging them in costs, and with recursion it fails."""
        kept = {key: value for key, value in view.items() if not _says_nothing(key, value)}
        if "type" in kept and any(key in kept for key in MERGING):
            rest = {key: value for key, value in kept.items() if key in ("$ref", "allOf", "anyOf", "oneOf")}
            if rest and self._disjointness.types(rest) <= self._disjointness.types({"type": kept["type"]}):
                del kept["type"]
        return kept

    def _alone(self, view: dict[str, Json], node: dict[str, Json]) -> dict[str, Json]:
        """Of a schema that would be merged with what it refers to, only one of the two; the rest is left to checks."""
        for keyword in ("$ref", "allOf", "anyOf", "oneOf"):
            if keyword in view and (len(view) > 1 or keyword == "allOf"):
                value = view[keyword][:1] if keyword == "allOf" else view[keyword]
                self._out.leave(node, *(view.keys() - {keyword}), *(["allOf"] if value != view[keyword] else []))
                return {keyword: value}
        return view

    def _traits(self) -> tuple[bool, bool]:
        """Whether schemas are merged with others somewhere, and whether there is a multipleOf."""
        merges = multiples = False
        for part in parts(self._normal.schema):
            view = self._simple({key: value for key, value in part.items() if key != "$defs"})
            applicators = view.keys() & MERGING
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
            self._out.leave(node, "oneOf")

    def _finite(self, view: dict[str, Json], node: dict[str, Json]) -> Json:
        """Exact, whatever else the schema says: its values are tried."""
        values = finite_values(view, node, self._validation)
        if any(_rounded(value) for value in values):
            self._out.leave(node, "const" if "const" in view else "enum")
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
            self._out.leave(node, *found.left)

    def _numbers(self, view: dict[str, Json], node: dict[str, Json], out: dict, kinds: set[str]) -> None:
        if not (kinds or view.keys() & _NUMBERS):
            return
        found = lower_number(view, kinds, not self._multiples)
        out.update(found.keywords)
        if found.left:
            self._out.leave(node, *found.left)

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

    def _arrays(self, view: dict[str, Json], node: dict[str, Json], out: dict[str, Json], *, only: bool) -> None:
        if "prefixItems" in view:
            out["prefixItems"] = [self._definite(node, part) for part in view["prefixItems"]]
        if "items" in view:
            out["items"] = self._definite(node, view["items"])
        elif only and self._anything is not True:
            out["items"] = self._any()
        for keyword in ("minItems", "maxItems"):
            if keyword in view:
                if view[keyword] <= MAX_ITEMS:
                    out[keyword] = view[keyword]
                else:
                    self._out.leave(node, keyword)
        if view.get("uniqueItems") and view.get("maxItems", 2) > 1:
            self._out.leave(node, "uniqueItems")
        if "contains" in view:
            least = view.get("minContains", 1)
            if least or "maxContains" in view:
                self._out.leave(node, "contains")
            if least:
                out["minItems"] = max(min(least, MAX_ITEMS), out.get("minItems", 0))
        if "unevaluatedItems" in view and view["unevaluatedItems"] is not True:
            self._out.leave(node, "unevaluatedItems")


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
