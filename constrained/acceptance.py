"""Whether a completed text satisfies a compiled constraint: what its grammar and its checks say together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .checks import Checker
from .engines.registry import load
from .schema_document import parse_json
from .schema_normal import normalise
from .schema_order import Order
from .spec import Compiled, Constraint, ConstraintError

if TYPE_CHECKING:
    from .vocabulary import Vocabulary


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
    schema = json.loads(constraint.body) if constraint.kind == "json_schema" else {}
    texts = Order(normalise(schema, constraint.strict)).texts(document)
    return any(accepts(compiled, vocabulary, each) for each in dict.fromkeys(texts))


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
