"""Compiles with xgrammar. Importing xgrammar takes seconds, so this module does it only when something is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..spec import ConstraintError

if TYPE_CHECKING:
    from xgrammar import GrammarCompiler

    from ..vocabulary import Vocabulary


def compile_schema(schema: str, max_whitespace: int, vocabulary: Vocabulary) -> bytes:
    """The payload of a JSON schema. Raises ConstraintError."""

    def made(compiler: GrammarCompiler) -> Any:
        return compiler.compile_json_schema(
            schema,
            any_whitespace=max_whitespace > 0,
            separators=None if max_whitespace else (",", ":"),
            strict_mode=False,
            max_whitespace_cnt=max_whitespace or None,
        )

    return _compiled(made, vocabulary)


def compile_regex(pattern: str, vocabulary: Vocabulary) -> bytes:
    """The payload of a regular expression that the whole text must match. Raises ConstraintError."""
    return _compiled(lambda compiler: compiler.compile_regex(pattern), vocabulary)


def compile_ebnf(text: str, vocabulary: Vocabulary) -> bytes:
    """The payload of a GBNF grammar. Raises ConstraintError."""
    return _compiled(lambda compiler: compiler.compile_grammar(text), vocabulary)


def compile_choice(choices: list[str], vocabulary: Vocabulary) -> bytes:
    """The payload of a list of texts. Raises ConstraintError."""
    quoted = ("".join(f"\\U{ord(char):08x}" for char in choice) for choice in choices)
    return compile_ebnf("root ::= " + " | ".join(f'"{each}"' for each in quoted), vocabulary)


def _compiled(make: Any, vocabulary: Vocabulary) -> bytes:
    import xgrammar

    compiler = xgrammar.GrammarCompiler(vocabulary.xgrammar_info, max_threads=1, cache_enabled=False)
    try:
        return make(compiler).serialize_json().encode()
    except (RuntimeError, ValueError) as error:
        raise ConstraintError(f"xgrammar cannot compile it: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """The library's own reason, without the place in its source."""
    return str(error).partition("cc:")[2].partition(": ")[2].strip()[:500] or str(error)[:500]
