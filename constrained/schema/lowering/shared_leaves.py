"""Gives equal strings and numbers of a grammar's schema one definition: an engine compiles the expression of each one
anew.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

Json = Any

_COSTLY = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern"}
_PLAIN = _COSTLY | {"type", "multipleOf", "minLength", "maxLength"}


def share_leaves(grammar: dict[str, Json]) -> None:
    """Replace, in place, what stands in several places by references to `$defs`."""
    counts: Counter[str] = Counter()
    _replace(grammar, lambda text: counts.update([text]))
    names = {text: f"leaf{i}" for i, text in enumerate(text for text, count in counts.items() if count > 1)}
    if not names:
        return
    _replace(grammar, lambda text: f"#/$defs/{names[text]}" if text in names else None)
    grammar.setdefault("$defs", {}).update({name: json.loads(text) for text, name in names.items()})


def _replace(grammar: Json, reference: Any) -> None:
    """reference: gives for a leaf (its JSON text) what to refer to instead, or None."""
    todo = [grammar]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            children: Any = [(name, part[name]) for name in part if name not in ("enum", "const")]
        elif isinstance(part, list):
            children = enumerate(part)
        else:
            continue
        for key, child in list(children):
            if _is_leaf(child):
                found = reference(json.dumps(child, sort_keys=True))
                if found:
                    part[key] = {"$ref": found}
            else:
                todo.append(child)


def _is_leaf(part: Json) -> bool:
    """A schema of a string or number whose expression takes work."""
    if not isinstance(part, dict) or not part.keys() <= _PLAIN or not part.keys() & _COSTLY:
        return False
    return isinstance(part.get("type"), str) and not any(isinstance(value, dict) for value in part.values())
