"""Free text in which some texts, the triggers, open constrained spans: the base of tool calling.

The body of such a constraint is JSON:

    {"triggers": ["<call"],
     "structures": [{"begin": "<call f>", "schema": {"type": "object"}, "end": "</call>"}],
     "at_least_one": false, "stop_after_first": false}

Text runs freely until a trigger has been written. From there on the completion must go on with one of the structures
whose `begin` starts with that trigger: the rest of `begin`, something that the structure's "schema", "regex" or "ebnf"
allows, and its `end`. Then text is free again. at_least_one: the completion starts with a structure, at once.
stop_after_first: it ends with the end of its first structure (without at_least_one, a text without any structure is
fine, too).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..schema.document import parse_json
from ..spec import ConstraintError

MAX_STRUCTURES = 500
MAX_TRIGGERS = 50
MAX_MARK = 10_000  # characters of a trigger, begin or end

Kind = Literal["schema", "regex", "ebnf"]


class Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of constrained span: exactly one of schema, regex and ebnf says what stands between begin and end."""

    begin: str
    end: str
    schema: dict[str, Any] | bool | None = None
    regex: str | None = None
    ebnf: str | None = None

    @property
    def kind(self) -> Kind:
        if self.schema is not None:
            return "schema"
        return "regex" if self.regex is not None else "ebnf"


class StructuralTag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a "structural_tag" constraint."""

    triggers: list[str]
    structures: list[Structure]
    at_least_one: bool = False
    stop_after_first: bool = False


def read_structural_tag(body: str) -> StructuralTag:
    """Raises ConstraintError with a sentence that names what is wrong in the body."""
    try:
        tag = msgspec.convert(parse_json(body, "the structural tag"), StructuralTag)
    except msgspec.ValidationError as error:
        raise ConstraintError(f"the structural tag is wrong: {error}") from None
    if not 1 <= len(tag.triggers) <= MAX_TRIGGERS or not 1 <= len(tag.structures) <= MAX_STRUCTURES:
        allowed = f"1 to {MAX_TRIGGERS} triggers and 1 to {MAX_STRUCTURES} structures"
        raise ConstraintError(f"a structural tag has {allowed}, not {len(tag.triggers)} and {len(tag.structures)}")
    for i, trigger in enumerate(tag.triggers):
        _check_mark(f"triggers[{i}]", trigger)
        if any(trigger in other for j, other in enumerate(tag.triggers) if j != i):
            raise ConstraintError(f"triggers[{i}], {trigger!r}, is part of another trigger")
    for i, structure in enumerate(tag.structures):
        _check_structure(f"structures[{i}]", structure, tag)
    return tag


def trigger_of(structure: Structure, tag: StructuralTag) -> int:
    """The index of the trigger with which a structure begins."""
    return next(i for i, trigger in enumerate(tag.triggers) if structure.begin.startswith(trigger))


def _check_structure(name: str, structure: Structure, tag: StructuralTag) -> None:
    given = [each for each in (structure.schema, structure.regex, structure.ebnf) if each is not None]
    if len(given) != 1:
        raise ConstraintError(f"{name} must have exactly one of schema, regex and ebnf, not {len(given)}")
    _check_mark(f"{name}.begin", structure.begin)
    if len(structure.end) > MAX_MARK:
        raise ConstraintError(f"{name}.end has more than {MAX_MARK} characters")
    if not any(structure.begin.startswith(trigger) for trigger in tag.triggers):
        raise ConstraintError(f"{name}.begin, {structure.begin[:100]!r}, starts with none of the triggers")
    for other in tag.structures:
        if other is not structure and other.begin.startswith(structure.begin):
            raise ConstraintError(f"{name}.begin, {structure.begin[:100]!r}, is the start of another structure's begin")


def _check_mark(name: str, text: str) -> None:
    if not 1 <= len(text) <= MAX_MARK:
        raise ConstraintError(f"{name} must have 1 to {MAX_MARK} characters, not {len(text)}")
