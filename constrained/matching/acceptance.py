"""Whether a completed text satisfies a compiled constraint: what its grammar and its checks say together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from ..compiler import compile_constraint
from ..engines.registry import load
from ..schema.document import escape, parse_json
from ..schema.normalise import normalise
from ..schema.order import Order
from ..schema.validation import Validation
from ..spec import Compiled, Constraint, ConstraintError
from .checks import Checker

if TYPE_CHECKING:
    from ..vocabulary import Vocabulary

MAX_MESSAGE = 300  # characters of what the validator says


def accepts(compiled: Compiled, vocabulary: Vocabulary, text: str) -> bool:
    """Whether exactly this text could be a whole completion."""
    token_ids = _tokens(vocabulary, text)
    if token_ids is None or not _grammar_accepts(compiled, vocabulary, token_ids):
        return False
    checker = Checker(compiled.checks)
    return all(checker.push(vocabulary.token_bytes[token_id]) for token_id in token_ids) and checker.finish()


def accepts_document(constraint: Constraint, compiled: Compiled, vocabulary: Vocabulary, text: str) -> bool:
    """Whether a completion could be this text or, for JSON, the same document as a grammar writes it.

    That is compact, and with the properties of objects in the order of the schema.
    """
    if accepts(compiled, vocabulary, text):
        return True
    if constraint.kind not in ("json_schema", "json_object"):
        return False
    try:
        document = parse_json(text, "the document")
    except ConstraintError:
        return False
    texts = Order(normalise(_schema(constraint), constraint.strict)).texts(document)
    return any(accepts(compiled, vocabulary, each) for each in dict.fromkeys(texts))


def why_rejected(constraint: Constraint, vocabulary: Vocabulary, text: str) -> str:
    """Why no completion could be a text that `accepts_document` does not accept: a place in it, and what is wrong."""
    if constraint.kind not in ("json_schema", "json_object"):
        return f"the {constraint.kind} does not allow this text"
    try:
        document = parse_json(text, "it")
    except ConstraintError as error:
        return str(error)
    normal = normalise(_schema(constraint), constraint.strict)
    error = Validation(normal.schema, normal.draft).main_error(normal.schema, document)
    if error is None:
        if not constraint.extra_properties and _is_accepted_when_open(constraint, vocabulary, text):
            return "the schema allows it, but where a schema names properties a completion has no others"
        bounds = f"strings of more than {constraint.max_string} characters, or numbers of very many digits"
        return f"the schema allows it, but completions have bounds where a schema has none: {bounds}"
    pointer = "".join(f"/{escape(str(part))}" for part in error.absolute_path)
    return f"{pointer or '/'}: {error.message[:MAX_MESSAGE]}"


def _is_accepted_when_open(constraint: Constraint, vocabulary: Vocabulary, text: str) -> bool:
    """Whether it would be accepted if objects could have properties that the schema does not name."""
    constraint = msgspec.structs.replace(constraint, extra_properties=True)
    return accepts_document(constraint, compile_constraint(constraint, vocabulary), vocabulary, text)


def _schema(constraint: Constraint) -> Any:
    return json.loads(constraint.body) if constraint.kind == "json_schema" else {"type": "object"}


def _tokens(vocabulary: Vocabulary, text: str) -> list[int] | None:
    """The text in tokens, byte by byte where the tokenizer cannot spell it; None where there are no such tokens."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return None
    token_ids = vocabulary.encode(text)
    if vocabulary.spell(token_ids) == data:
        return token_ids
    single = vocabulary.byte_tokens
    return [single[value] for value in data] if all(value in single for value in data) else None


def _grammar_accepts(compiled: Compiled, vocabulary: Vocabulary, token_ids: list[int]) -> bool:
    matcher = load(compiled, vocabulary).start()
    return all(matcher.accept(token_id) for token_id in token_ids) and matcher.may_end
