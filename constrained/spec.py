"""What a completion may be constrained to, as plain data. This module must not import a grammar engine."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

Kind = Literal["json_schema", "json_object", "regex", "ebnf", "choice", "structural_tag", "tool_calls"]
EngineName = Literal["llguidance", "xgrammar", "none"]

MAX_CONSTRAINT_BYTES = 1 << 20  # of a constraint's body, and of any other JSON text that is read here
MAX_CHOICES = 10_000
MAX_WHITESPACE = 64  # characters between two tokens of JSON
MAX_STRING = 10**6  # what `max_string` may say
COMPILE_SECONDS = 5.0  # how long a server lets one constraint be compiled


class Constraint(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One constraint of one request, before it is compiled.

    kind and body: "json_schema": a JSON Schema as JSON text. "json_object": body is "". "regex": a pattern that the
    whole completion must match. "ebnf": a grammar in GBNF style, its start rule named `root`. "choice": a JSON list of
    texts. "structural_tag": JSON, see `constrained.grammar.structural_tag`. "tool_calls": JSON, see
    `constrained.grammar.tool_calls`; made of a request's tools, never sent by one.
    strict: False lets keywords that cannot be enforced be relaxed; they are then reported, never dropped in silence.
    max_whitespace: how many whitespace characters JSON may have between two of its tokens; 0 is compact JSON.
    max_string: the longest JSON string, in characters, where the schema itself bounds neither length nor pattern nor
    format; 0 means no bound.
    The defaults are those of every face: requests, the command line, tools.
    extra_properties: False keeps a completion to the properties that a schema names, where it names some and leaves
    others open: a small model goes on inventing them until its tokens are used up. An object's names are those of all
    schemas that apply or may apply to it, but alternatives that are whole objects have their own only.
    engine: "auto" picks one that enforces everything; a named one is used or the constraint is refused.
    """

    kind: Kind
    body: str = ""
    strict: bool = True
    max_whitespace: int = 0
    max_string: int = 1024
    engine: Literal["auto", "llguidance", "xgrammar"] = "auto"
    extra_properties: bool = False


def constraint_key(constraint: Constraint) -> str:
    """A hash of all that a constraint says: equal constraints have equal keys, in every process."""
    return hashlib.sha256(msgspec.json.encode(constraint)).hexdigest()


class Unenforced(msgspec.Struct, frozen=True, array_like=True):
    """A keyword that a grammar does not enforce: where in the schema (JSON pointer), and why."""

    keyword: str
    pointer: str
    reason: str


class Thinking(msgspec.Struct, frozen=True, array_like=True):
    """What comes before the answer that is constrained: free text between two marks.

    inside: the completion starts within it; else it may start with the opening mark, or with the answer. tokens: the
    control tokens that stand in the marks, with their texts. gap: what stands between closing mark and answer. budget:
    after so many tokens of thinking the closing mark follows; -1 is no bound.
    """

    inside: bool
    opening: str
    closing: str
    tokens: dict[int, str] = {}
    gap: str = ""
    budget: int = -1


class Compiled(msgspec.Struct, frozen=True, array_like=True):
    """A constraint that was checked and compiled: all that a worker needs to start matchers for it.

    key: the constraint's (`constraint_key`). engine: whose matcher `payload` is for; "none" allows any answer.
    payload: the engine's own form of the grammar (for llguidance its text, for xgrammar its serialized grammar).
    checks: what is checked beside the grammar whenever a value closes, as JSON text; "" for nothing.
    enforced: the keywords of the schema that grammar and checks enforce, sorted. relaxed: those which only `strict:
    false` let pass, and annotations by the standard that nothing could enforce (unknown formats). thinking: what comes
    before all that.
    """

    key: str
    engine: EngineName
    payload: bytes
    checks: str = ""
    enforced: list[str] = []
    relaxed: list[Unenforced] = []
    thinking: Thinking | None = None


def with_thinking(compiled: Compiled | None, thinking: Thinking) -> Compiled:
    """The constraint of an answer with thinking before it; None allows any answer."""
    compiled = compiled or Compiled("", "none", b"")
    key = hashlib.sha256(compiled.key.encode() + msgspec.json.encode(thinking)).hexdigest()
    return msgspec.structs.replace(compiled, key=key, thinking=thinking)


class ConstraintError(ValueError):
    """A constraint is refused, in one sentence for the user that names keyword and JSON pointer where there are any.

    refused: all the reasons of a schema that is refused; empty for a syntax error or a limit.
    """

    def __init__(self, message: str, refused: list[Unenforced] | None = None) -> None:
        super().__init__(message)
        self.refused = refused or []
