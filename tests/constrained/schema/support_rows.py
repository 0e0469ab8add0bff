"""What `docs/json-schema.md` says of JSON Schema, as examples: each with a document that it allows and one that it does
not. How an example is enforced stands nowhere here: `support_page` asks the code, and a test tries the documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = Any
LONG = 1001  # more items than a grammar counts


@dataclass(frozen=True)
class Example:
    """keyword: what it is of. schema: says it, at its top. yes, no: documents. note: what its row is to say beside."""

    keyword: str
    schema: Json
    yes: Json = None
    no: Json = None
    note: str = ""


def _object(**more: Json) -> Json:
    return {"type": "object", **more}


def _array(**more: Json) -> Json:
    return {"type": "array", **more}


_INTEGER = {"type": "integer"}
_A = {"a": _INTEGER}

EXAMPLES = [
    # any value
    Example("type", {"type": "integer"}, 1, "a"),
    Example("type", {"type": ["string", "null"]}, None, 1),
    Example("enum", {"enum": [1, "a", {"b": [2]}]}, {"b": [2]}, {"b": []}),
    Example("const", {"const": {"a": 1}}, {"a": 1}, {"a": 2}),
    # numbers
    Example("minimum", {"type": "integer", "minimum": 3}, 3, 2),
    Example("minimum", {"type": "number", "minimum": 1e20}, 1e21, 5, "beyond 10^15 (whole numbers: 2^53)"),
    Example("maximum", {"type": "number", "maximum": 2.5}, 2.5, 2.6),
    Example("exclusiveMinimum", {"type": "number", "exclusiveMinimum": 0}, 0.5, 0),
    Example("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 10}, 9, 10),
    Example("multipleOf", {"type": "integer", "multipleOf": 7}, 14, 15),
    Example("multipleOf", {"type": "number", "multipleOf": 0.01}, 1.25, 1.255),
    Example("multipleOf", {"type": "number", "multipleOf": 0.123456}, 0.246912, 0.2),
    # strings
    Example("minLength", {"type": "string", "minLength": 2}, "ab", "a"),
    Example("maxLength", {"type": "string", "maxLength": 2}, "ab", "abc"),
    Example("pattern", {"type": "string", "pattern": "^[a-z]+$"}, "ab", "A", "see below"),
    Example("format", {"type": "string", "format": "date"}, "2024-02-29", "2023-02-29", "see below"),
    # arrays
    Example("items", _array(items=_INTEGER), [1, 2], [1, "a"]),
    Example("prefixItems", _array(prefixItems=[_INTEGER, {"type": "string"}]), [1, "a"], ["a", 1]),
    Example("additionalItems", _array(items=[_INTEGER], additionalItems=False), [1], [1, 2], "drafts 4 to 2019-09"),
    Example("minItems", _array(minItems=2), [1, 2], [1]),
    Example("minItems", _array(items={"const": 1}, minItems=LONG), [1] * LONG, [1], "above 1000"),
    Example("maxItems", _array(maxItems=1), [1], [1, 2]),
    Example("maxItems", _array(items={"const": 1}, maxItems=LONG), [1], [1] * (LONG + 1), "above 1000"),
    Example("uniqueItems", _array(uniqueItems=True), [1, 2], [1, 1.0]),
    Example("contains", _array(contains={"const": 5}), [1, 5], [1]),
    Example("minContains", _array(contains={"const": 5}, minContains=2), [5, 5], [5, 1]),
    Example("maxContains", _array(contains={"const": 5}, maxContains=1), [5, 1], [5, 5]),
    Example("unevaluatedItems", _array(prefixItems=[_INTEGER], unevaluatedItems=False), [1], [1, 2]),
    # objects
    Example("properties", _object(properties=_A), {"a": 1}, {"a": "b"}),
    Example("required", _object(properties=_A, required=["a"]), {"a": 1}, {}),
    Example("additionalProperties", _object(properties=_A, additionalProperties=False), {"a": 1}, {"b": 1}),
    Example("additionalProperties", _object(properties=_A, additionalProperties=_INTEGER), {"b": 1}, {"b": "c"}),
    Example(
        "additionalProperties",
        _object(patternProperties={r"\b": _INTEGER}, additionalProperties=False),
        {"a": 1},
        {"": 1},
        "beside a pattern that no grammar can hold",
    ),
    Example("patternProperties", _object(patternProperties={"^x-": _INTEGER}), {"x-a": 1}, {"x-a": "b"}),
    Example("patternProperties", _object(patternProperties={r"\b": _INTEGER}), {"a": 1}, {"a": "b"}, "look-around"),
    Example("propertyNames", _object(propertyNames={"pattern": "^[a-z]+$"}), {"a": 1}, {"A": 1}),
    Example("propertyNames", _object(propertyNames={"not": {"const": "a"}}), {"b": 1}, {"a": 1}),
    Example("minProperties", _object(minProperties=1), {"a": 1}, {}),
    Example("maxProperties", _object(maxProperties=1), {"a": 1}, {"a": 1, "b": 2}),
    Example("dependentRequired", _object(properties=_A, dependentRequired={"a": ["b"]}), {"a": 1, "b": 2}, {"a": 1}),
    Example("dependentSchemas", _object(dependentSchemas={"a": {"required": ["b"]}}), {"a": 1, "b": 2}, {"a": 1}),
    Example("dependencies", _object(dependencies={"a": ["b"]}), {"a": 1, "b": 2}, {"a": 1}, "drafts 4 to 7"),
    Example(
        "unevaluatedProperties",
        {"allOf": [_object(properties=_A)], "unevaluatedProperties": False},
        {"a": 1},
        {"b": 1},
    ),
    # combinations
    Example("allOf", {"allOf": [_INTEGER, {"minimum": 3}]}, 3, 2),
    Example("anyOf", {"anyOf": [_INTEGER, {"type": "string"}]}, "a", 1.5),
    Example("oneOf", {"oneOf": [_INTEGER, {"type": "string"}]}, "a", 1.5, "one at a time can hold"),
    Example("oneOf", {"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, 2, 6, "several can hold"),
    Example("not", {"type": "string", "not": {"enum": ["a", "b"]}}, "c", "a"),
    Example("not", {"not": {"type": "string"}}, 1, "a"),
    Example("if", {"type": "integer", "if": {"minimum": 5}, "then": {"multipleOf": 2}}, 6, 7),
    Example(
        "then",
        _object(
            properties={"k": {"enum": ["n", "s"]}, "v": True},
            required=["k"],
            **{"if": {"properties": {"k": {"const": "n"}}}, "then": {"properties": {"v": _INTEGER}}},
        ),
        {"k": "n", "v": 1},
        {"k": "n", "v": "a"},
    ),
    Example("else", {"type": "integer", "if": {"minimum": 5}, "else": {"multipleOf": 2}}, 4, 3),
    # references
    Example("$ref", {"$ref": "#/$defs/a", "$defs": {"a": _INTEGER}}, 1, "a"),
    Example("$ref", _object(properties={"next": {"$ref": "#"}}), {"next": {}}, {"next": 1}, "to itself"),
    Example("$ref", {"$ref": "https://json-schema.org/draft/2020-12/schema"}, True, 1, "to a standard metaschema"),
    Example("$ref", {"$ref": "https://example.com/schema.json"}, note="to anywhere else: nothing is ever fetched"),
    Example("$dynamicRef", {"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a", **_INTEGER}}}, 1, "a"),
    Example(
        "$dynamicRef",
        {
            "$dynamicRef": "#a",
            "$defs": {"a": {"$dynamicAnchor": "a"}, "b": {"$id": "b", "$dynamicAnchor": "a", **_INTEGER}},
        },
        note="to an anchor that stands there more than once",
    ),
    Example(
        "$recursiveRef",
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "items": {"$recursiveRef": "#"}, "type": "array"},
        [[]],
        [1],
        "draft 2019-09",
    ),
]

FORMATS = {
    "date": ("2024-02-29", "2023-02-29"),
    "time": ("12:00:00Z", "24:00:00Z"),
    "date-time": ("2024-01-01T12:00:00+01:00", "2024-01-01 12:00"),
    "duration": ("P1DT2H", "P1H"),
    "email": ("a@b.org", "a@"),
    "idn-email": ("ä@ö.org", "ä@"),
    "hostname": ("a-b.org", "-a.org"),
    "idn-hostname": ("ö.org", "-ö.org"),
    "ipv4": ("127.0.0.1", "256.0.0.1"),
    "ipv6": ("::1", ":::1"),
    "uri": ("https://a.org/b?c#d", "//a.org"),
    "uri-reference": ("../a", "a b"),
    "iri": ("https://ö.org", "ö"),
    "iri-reference": ("ö", "a b"),
    "uri-template": ("/a/{b}", "/a/{"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    "json-pointer": ("/a/0", "a"),
    "relative-json-pointer": ("1/a", "/a"),
    "regex": ("^a+$", "("),
}
"""By name, a text that has the format and one that has not."""


@dataclass(frozen=True)
class Feature:
    """A feature of patterns. what: its name. pattern: an example of it. yes, no: texts."""

    what: str
    pattern: str
    yes: str | None = None
    no: str | None = None


FEATURES = [
    Feature("literal characters, `|`, groups", "^(cat|dog)s?$", "dogs", "cow"),
    Feature("anchors; without them a pattern is searched for", "b", "abc", "ac"),
    Feature("classes, ranges, negated classes", "^[^a-f]$", "g", "a"),
    Feature("`\\d \\w \\s` and their opposites", "^\\d\\D$", "1a", "a1"),
    Feature("any character", "^.$", "a", ""),
    Feature("counted repetition, at most 65535", "^a{2,3}$", "aa", "a"),
    Feature("lazy repetition", "^a+?$", "aa", "b"),
    Feature("escapes of characters", "^\\n\\x41\\u0042\\u{43}\\cJ$", "\nABC\n", "n"),
    Feature("Unicode categories", "^\\p{Lu}$", "Ä", "ä"),
    Feature("named groups", "^(?<a>b)$", "b", "c"),
    Feature("case left out of account, at the start", "(?i)^a$", "A", "b"),
    Feature("look-ahead", "^(?!a)", "b", "a"),
    Feature("look-behind", "(?<=a)b", "ab", "bb"),
    Feature("word boundaries", "\\bcat\\b", "a cat", "cats"),
    Feature("look-ahead beside nested repetition", "^(?=a)(b*)*$"),
    Feature("look-ahead beside Unicode categories", "(?!a)\\p{L}"),
    Feature("back references", "^(a)\\1$"),
    Feature("possessive repetition", "a++"),
    Feature("atomic groups", "(?>a)"),
    Feature("flags elsewhere", "a(?i)b"),
    Feature("`{,n}`", "a{,3}"),
    Feature("escapes that only some dialects have", "\\Aa\\z"),
    Feature("the empty class", "[]"),
    Feature("no regular expression", "("),
]

ODD = [
    Example("minLenght", {"minLenght": 2}, note="a misspelt keyword"),
    Example("format", {"format": "dattime"}, note="a misspelt format"),
    Example("minimum", {"minimum": "3"}, note="a value that the standard does not allow"),
    Example("$ref", {"$ref": "#/$defs/a"}, note="a reference that leads nowhere"),
    Example("allOf", {"allOf": [{"$ref": "#"}]}, note="a schema that refers to itself about the same value"),
    Example("type", {"type": "integer", "enum": ["a"]}, note="a schema that no value satisfies"),
    Example("format", {"type": "string", "format": "slug"}, "a", 1, "a format that the standard does not have"),
    Example("x-order", {"type": "string", "x-order": 1}, "a", 1, "a keyword that the standard does not have"),
    Example("contentEncoding", {"type": "string", "contentEncoding": "base64"}, "-", 1, "what a string contains"),
]
"""What is not a feature, and what becomes of it."""
