"""Validates values against a normalised schema, exactly: with `jsonschema`, but patterns and formats as read here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

from jsonschema import Draft4Validator, Draft202012Validator, FormatChecker, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.validators import extend

from ..grammar.formats import FORMAT_CHECKS, FORMAT_LENGTHS, FORMATS
from ..grammar.patterns import PatternError, to_engine, to_python, to_wide

Json = Any
MAX_REFERENCES = 10_000  # that one validation follows; schemas that refer to each other can ask for any number
END = 256  # the id of the end token of the tokenizer that reads bytes


class Validation:
    """Values against the parts of one normalised schema."""

    def __init__(self, schema: Json, draft: int = 2020) -> None:
        """draft: the one that the schema was written for; in draft 4, 1.0 is no integer."""
        self._work = _WorkCount()
        self._validator = (_Validator4 if draft == 4 else _Validator)(schema, format_checker=self._work)

    def error(self, part: Json, value: Json) -> ValidationError | None:
        """The first thing wrong with `value` as an instance of `part`, a part of the schema."""
        return self._found(part, value, lambda errors: next(errors, None))

    def main_error(self, part: Json, value: Json) -> ValidationError | None:
        """The thing wrong that says most: of alternatives, one that nearly holds."""
        return self._found(part, value, best_match)

    def _found(
        self, part: Json, value: Json, choose: Callable[[Iterator[ValidationError]], ValidationError | None]
    ) -> ValidationError | None:
        self._work.references = 0
        try:
            return choose(self._validator.descend(value, part))
        except _TooMuchWork:
            return ValidationError("it takes too much work to be checked", validator="$ref")
        except RecursionError:
            return ValidationError("it is nested too deep to be checked", validator="depth")
        except OverflowError:
            return ValidationError("it holds a number too large to be checked", validator="number")

    def is_valid(self, part: Json, value: Json) -> bool:
        return self.error(part, value) is None


class _TooMuchWork(Exception):
    """A validation follows more references than it may."""


class _WorkCount(FormatChecker):
    """Counts the work of one validation. It travels as the format checker, which validators hand to each other."""

    references = 0


@lru_cache(maxsize=2000)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a pattern is found in a text, in time that is never exponential. Raises PatternError."""
    try:
        compiled, longest = to_python(pattern)
    except PatternError as error:
        if not error.only_here:
            raise
        return _automaton(to_engine(pattern))

    def search(text: str) -> bool:
        if len(text) <= longest:
            return compiled.search(text) is not None
        try:
            return _automaton(to_engine(pattern))(text)
        except PatternError:
            return False  # too long to be checked

    return search


def matcher_of_wide(pattern: str) -> Callable[[str], bool]:
    """Whether a text is found by what a grammar holds instead of a pattern that it cannot hold."""
    return _automaton(to_wide(pattern))


@lru_cache(maxsize=2000)
def string_matcher(pattern: str) -> Any:
    """llguidance's matcher, over single bytes, of the JSON strings in which a pattern of its dialect is found.

    It is at the start, and to be copied. Raises PatternError.
    """
    import llguidance

    schema = json.dumps({"type": "string", "pattern": pattern})
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    start = llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
    if start.is_error():
        raise PatternError(start.get_error().partition("\n")[0])
    return start


def _automaton(pattern: str) -> Callable[[str], bool]:
    """The same by a grammar engine, in linear time. pattern: in the engine's dialect."""
    start = string_matcher(pattern)

    def matches(text: str) -> bool:
        fresh = start.deep_copy()
        data = list(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))
        return fresh.try_consume_tokens(data) == len(data) and fresh.is_accepting()

    return matches


@cache
def byte_tokenizer() -> Any:
    """A tokenizer for llguidance whose tokens are the single bytes."""
    import llguidance

    class Bytes:
        eos_token_id = END
        bos_token_id = None
        tokens = (*(bytes([value]) for value in range(END)), b"<end>")
        special_token_ids = (END,)

        def __call__(self, text: bytes | str) -> list[int]:
            return list(text if isinstance(text, bytes) else text.encode())

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def has_format(name: str, text: str) -> bool:
    """Whether a text has one of the known formats."""
    whole = FORMATS.get(name)
    if len(text) > FORMAT_LENGTHS.get(name, len(text)):
        return False
    if whole is not None and not _automaton(f"^(?:{whole})$")(text):
        return False
    return name not in FORMAT_CHECKS or FORMAT_CHECKS[name](text)


def _ref(validator: Any, reference: str, value: Json, schema: Json) -> Iterator[ValidationError]:
    validator.format_checker.references += 1
    if validator.format_checker.references > MAX_REFERENCES:
        raise _TooMuchWork
    yield from _FOLLOW(validator, reference, value, schema)


def _pattern(validator: Any, pattern: str, value: Json, schema: Json) -> Iterator[ValidationError]:
    if isinstance(value, str) and not matcher(pattern)(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _format(validator: Any, name: str, value: Json, schema: Json) -> Iterator[ValidationError]:
    if isinstance(value, str) and not has_format(name, value):
        yield ValidationError(f"{value!r} is not a {name}")


def _pattern_properties(validator: Any, patterns: Json, value: Json, schema: Json) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, part in patterns.items():
            for name, each in value.items():
                if matcher(pattern)(name):
                    yield from validator.descend(each, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, part: Json, value: Json, schema: Json) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, each in value.items():
            if name not in known and not any(matcher(pattern)(name) for pattern in patterns):
                yield from validator.descend(each, part, path=name)


_FOLLOW: Any = Draft202012Validator.VALIDATORS["$ref"]
_Validator = extend(
    Draft202012Validator,
    {
        "$ref": _ref,
        "pattern": _pattern,
        "format": _format,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    },
)
_Validator4 = extend(_Validator, type_checker=Draft4Validator.TYPE_CHECKER)
