"""Any draft's schema, rewritten to mean the same in Draft 2020-12, self-contained: its references are `#/$defs/NAME`
only.

Every keyword is looked at here: one that is malformed is refused, and what the standard calls an annotation is noted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ..grammar.formats import FORMAT_CHECKS, FORMATS, is_known
from ..grammar.patterns import PatternError, check_pattern
from ..near_names import surely_meant
from ..spec import ConstraintError, Unenforced
from .declare_names import declare_names
from .document import Document, Elsewhere, Json, ReferenceTarget, SchemaPlace, base_inside, kind_of, refuse
from .keyword_values import PLAIN, read_names, read_number
from .normal import MAX_PROPERTIES, Normal

MAX_SCHEMAS = 20_000

SILENT = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "readOnly", "writeOnly"}
SILENT |= {"deprecated", "$anchor", "$dynamicAnchor", "$defs"}
SILENT |= {"definitions", "id", "$vocabulary", "$recursiveAnchor"}
"""What says nothing about a value by itself."""
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_SCHEMA = {"additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems"}
_SCHEMA |= {"unevaluatedProperties"}
_SCHEMAS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_SCHEMA_MAPS = {"properties", "dependentSchemas"}
_OTHERS = PLAIN.keys() | _NUMBERS | _SCHEMA | _SCHEMAS | _SCHEMA_MAPS  # beside those of _MORE
_DYNAMIC = "there are several anchors that it may lead to, by the way on which a validator came here"
_NEEDS = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}


def normalise(root: Json, strict: bool = True) -> Normal:
    """Raises ConstraintError for a schema that is malformed, too large, or refers to what is not there.

    strict: False notes and drops a keyword that nothing can enforce, which is refused otherwise.
    """
    if not isinstance(root, dict | bool):
        raise ConstraintError(f"a JSON schema is an object or a boolean, not {kind_of(root)}")
    normal = _Normaliser(Document(root), strict).run()
    declare_names(normal)
    return normal


class _Normaliser:
    def __init__(self, document: Document, strict: bool) -> None:
        self._document = document
        self._strict = strict
        self._normal = Normal(True, draft=document.draft)
        self._names: dict[tuple[str, str], str] = {}
        self._queue: list[tuple[str, ReferenceTarget]] = []
        self._count = 0
        self._unknown: set[str] = set()

    def run(self) -> Normal:
        document = self._document
        root = self._schema(document.root, SchemaPlace("", document.base, document.draft))
        definitions: dict[str, Json] = {}
        while self._queue:
            name, target = self._queue.pop()
            definitions[name] = self._schema(target.schema, SchemaPlace(target.pointer, target.base, target.draft))
        if definitions:
            ordered = {name: definitions[name] for name in sorted(definitions, key=int)}
            root = {**(root if isinstance(root, dict) else {}), "$defs": ordered}
            self._normal.pointers[id(root)] = ""
        self._normal.schema = root
        return self._normal

    def _schema(self, schema: Json, place: SchemaPlace) -> Json:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            keyword = place.pointer.rpartition("/")[2] or "schema"
            refuse(keyword, place.pointer, f"it must be a schema, an object or a boolean, not {kind_of(schema)}")
        self._count += 1
        if self._count > MAX_SCHEMAS:
            raise ConstraintError(f"the schema holds more than {MAX_SCHEMAS} schemas")
        out: dict[str, Json] = {}
        self._normal.pointers[id(out)] = place.pointer
        place = SchemaPlace(place.pointer, base_inside(schema, place.base, place.draft), place.draft)
        if place.draft <= 7 and "$ref" in schema:
            self._ignored_siblings(schema, place)
            schema = {"$ref": schema["$ref"]}
        for keyword, value in schema.items():
            if _NEEDS.get(keyword, keyword) in schema:
                self._keyword(keyword, value, schema, out, place)
        if "patternProperties" in schema and "patternProperties" not in out:
            out.pop("additionalProperties", None)  # relaxed: it is not known which names are additional
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if exclusive in out and out[exclusive] is None:
                if bound not in out:
                    refuse(exclusive, place.at(exclusive), f"as a boolean it needs {bound} beside it")
                out[exclusive] = out.pop(bound)
        return out

    def _ignored_siblings(self, schema: dict[str, Json], place: SchemaPlace) -> None:
        for keyword in schema:
            if keyword != "$ref" and keyword in KEYWORDS:
                reason = f"draft {place.draft} ignores what stands beside $ref"
                self._normal.notes.append(Unenforced(keyword, place.at(keyword), reason))

    def _keyword(
        self, keyword: str, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace
    ) -> None:
        if keyword in SILENT:
            return
        if keyword.startswith("content"):
            self._note(keyword, place.at(keyword), "what a string contains is not looked at: an annotation")
            return
        handler = _MORE.get(keyword)
        if handler is None and keyword not in _OTHERS:
            self._unknown_keyword(keyword, place)
            return
        if handler is not None:
            if handler(self, value, schema, out, place) is not False:
                self._normal.keywords.add(keyword)
            return
        self._normal.keywords.add(keyword)
        if keyword in PLAIN:
            out[keyword] = PLAIN[keyword](keyword, value, place)
        elif keyword in _NUMBERS:
            self._number(keyword, value, out, place)
        elif keyword in _SCHEMA:
            out[keyword] = self._schema(value, place.under(keyword))
        elif keyword in _SCHEMAS:
            out[keyword] = self._schemas(keyword, value, place)
        else:
            out[keyword] = self._schema_map(keyword, value, place)

    def _unknown_keyword(self, keyword: str, place: SchemaPlace) -> None:
        """An annotation, unless it looks as if something else was meant."""
        if keyword in self._unknown:
            return
        meant = surely_meant(keyword, KEYWORDS)
        if meant is not None:
            self._drop(keyword, place.at(keyword), f"JSON Schema has no such keyword; did you mean {meant!r}?")
        else:
            self._note(keyword, place.at(keyword), "JSON Schema has no such keyword: an annotation")
        self._unknown.add(keyword)

    def _drop(self, keyword: str, pointer: str, reason: str) -> Literal[False]:
        """A keyword that nothing can enforce."""
        if self._strict:
            refuse(keyword, pointer, reason)
        return self._note(keyword, pointer, reason)

    def _note(self, keyword: str, pointer: str, reason: str) -> Literal[False]:
        self._normal.notes.append(Unenforced(keyword, pointer, reason))
        return False

    # --- keywords whose value holds schemas -------------------------------------------------------------------------

    def _schemas(self, keyword: str, value: Json, place: SchemaPlace) -> list[Json]:
        if not isinstance(value, list) or not value:
            refuse(keyword, place.at(keyword), "it must be a list of schemas, at least one")
        return [self._schema(each, place.under(keyword, i)) for i, each in enumerate(value)]

    def _schema_map(self, keyword: str, value: Json, place: SchemaPlace) -> dict[str, Json]:
        if not isinstance(value, dict):
            refuse(keyword, place.at(keyword), f"it must be an object of schemas, not {kind_of(value)}")
        if len(value) > MAX_PROPERTIES:
            refuse(keyword, place.at(keyword), f"it lists {len(value)} names; at most {MAX_PROPERTIES} are allowed")
        return {name: self._schema(each, place.under(keyword, name)) for name, each in value.items()}

    def _pattern_properties(
        self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace
    ) -> Literal[False] | None:
        parts = self._schema_map("patternProperties", value, place)
        for pattern in parts:
            try:
                check_pattern(pattern)
            except PatternError as error:
                at = place.at("patternProperties", pattern)
                return self._drop("patternProperties", at, f"{pattern[:200]!r} is refused: {error}")
        out["patternProperties"] = parts
        return None

    def _items(self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace) -> None:
        if not isinstance(value, list):
            out["items"] = self._schema(value, place.under("items"))
            return
        if place.draft == 2020 and self._document.declared:
            refuse("items", place.at("items"), "in draft 2020-12 it is one schema; a list belongs into prefixItems")
        if "prefixItems" in schema:
            refuse("items", place.at("items"), "it cannot be a list beside prefixItems")
        if value:
            out["prefixItems"] = [self._schema(each, place.under("items", i)) for i, each in enumerate(value)]
        if "additionalItems" in schema:
            out["items"] = self._schema(schema["additionalItems"], place.under("additionalItems"))

    def _additional_items(self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace) -> None:
        """Handled with `items`; without a list there, it has no meaning in any draft."""
        self._schema(value, place.under("additionalItems"))

    def _dependencies(self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace) -> None:
        if not isinstance(value, dict):
            refuse("dependencies", place.at("dependencies"), f"it must be an object, not {kind_of(value)}")
        for name, each in value.items():
            inner = place.under("dependencies", name)
            if isinstance(each, list):
                out.setdefault("dependentRequired", {})[name] = read_names("dependencies", each, inner)
            else:
                out.setdefault("dependentSchemas", {})[name] = self._schema(each, inner)

    def _dependent_required(
        self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace
    ) -> None:
        keyword = "dependentRequired"
        if not isinstance(value, dict):
            refuse(keyword, place.at(keyword), f"it must be an object of lists, not {kind_of(value)}")
        for name, each in value.items():
            out.setdefault(keyword, {})[name] = read_names(keyword, each, place.under(keyword, name))

    def _ref(
        self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace
    ) -> Literal[False] | None:
        return self._refer("$ref", value, out, place)

    def _recursive_ref(
        self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace
    ) -> Literal[False] | None:
        if place.base.startswith("https://json-schema.org/draft/"):
            value = "https://json-schema.org/draft/2019-09/schema"
        elif self._document.dynamic[""] > 1:
            return self._drop("$recursiveRef", place.at("$recursiveRef"), _DYNAMIC)
        return self._refer("$recursiveRef", value, out, place)

    def _dynamic_ref(
        self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace
    ) -> Literal[False] | None:
        """Inside one resource it is `$ref`; the standard metaschemas alone reach further, and always to their root."""
        if isinstance(value, str) and place.base.startswith("https://json-schema.org/draft/"):
            value = "https://json-schema.org/draft/2020-12/schema"
        elif isinstance(value, str) and self._document.dynamic[value.rpartition("#")[2]] > 1:
            return self._drop("$dynamicRef", place.at("$dynamicRef"), _DYNAMIC)
        return self._refer("$dynamicRef", value, out, place)

    def _refer(self, keyword: str, value: Json, out: dict[str, Json], place: SchemaPlace) -> Literal[False] | None:
        if not isinstance(value, str):
            refuse(keyword, place.at(keyword), f"it must be a text, not {kind_of(value)}")
        try:
            target = self._document.resolve(value, place.base, keyword, place.at(keyword))
        except Elsewhere as error:
            return self._drop(keyword, place.at(keyword), error.reason)
        key = (target.base, target.pointer)
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._queue.append((self._names[key], target))
        link = {"$ref": f"#/$defs/{self._names[key]}"}
        if "$ref" not in out:
            out.update(link)
        else:
            self._normal.pointers[id(link)] = place.pointer
            out["allOf"] = [*out.get("allOf", []), link]
        return None

    # --- keywords with plain values ---------------------------------------------------------------------------------

    def _number(self, keyword: str, value: Json, out: dict[str, Json], place: SchemaPlace) -> None:
        if (
            isinstance(value, bool)
            and keyword.startswith("exclusive")
            and (place.draft == 4 or not self._document.declared)
        ):
            if value:  # draft 4: it says that the bound itself is not allowed
                out[keyword] = None
            return
        out[keyword] = read_number(keyword, value, place)

    def _pattern(
        self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace
    ) -> Literal[False] | None:
        if not isinstance(value, str):
            refuse("pattern", place.at("pattern"), f"it must be a text, not {kind_of(value)}")
        try:
            check_pattern(value)
            out["pattern"] = value
        except PatternError as error:
            return self._drop("pattern", place.at("pattern"), f"{value[:200]!r} is refused: {error}")
        return None

    def _format(
        self, value: Json, schema: dict[str, Json], out: dict[str, Json], place: SchemaPlace
    ) -> Literal[False] | None:
        if not isinstance(value, str):
            refuse("format", place.at("format"), f"it must be a text, not {kind_of(value)}")
        if not is_known(value):
            meant = surely_meant(value, FORMATS.keys() | FORMAT_CHECKS.keys())
            if meant is not None:
                reason = f"the standard has no format {value[:100]!r}; did you mean {meant!r}?"
                return self._drop("format", place.at("format"), reason)
            return self._note("format", place.at("format"), f"the standard has no format {value!r}: an annotation")
        out["format"] = value
        return None


Handler = Callable[[_Normaliser, Json, dict[str, Json], dict[str, Json], SchemaPlace], Any]
_MORE: dict[str, Handler] = {
    "items": _Normaliser._items,
    "additionalItems": _Normaliser._additional_items,
    "dependencies": _Normaliser._dependencies,
    "dependentRequired": _Normaliser._dependent_required,
    "$ref": _Normaliser._ref,
    "$recursiveRef": _Normaliser._recursive_ref,
    "$dynamicRef": _Normaliser._dynamic_ref,
    "pattern": _Normaliser._pattern,
    "patternProperties": _Normaliser._pattern_properties,
    "format": _Normaliser._format,
}
KEYWORDS = _OTHERS | _MORE.keys()
"""All that constrain a value."""
