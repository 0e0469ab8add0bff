"""Which format of tool calls a chat template means."""

from __future__ import annotations

import re

from .known_formats import BY_NAME, HERMES, IN_ORDER, SMOLLM2
from .tool_format import ToolFormat

_UNREAD = (("<|open|>", "argument key"), ("]<]minimax[>[",))
"""Signs of formats that are none of these, though they have marks in common with some."""


def tool_format(wanted: str, template: str | None) -> ToolFormat | None:
    """The format of this name; for "auto" the one that a chat template's source means.

    A template that shows neither tools nor calls leaves the choice to us: SmolLM2's family was trained on its own
    format, and Hermes' is what most others know. None: the template shows tools in a way that is none of these.
    """
    if wanted != "auto":
        return BY_NAME[wanted]
    source = template or ""
    if any(all(text in source for text in group) for group in _UNREAD):
        return None
    for each in IN_ORDER:
        if any(all(text in source for text in group) for group in each.signs) and not any(
            text in source for text in each.without
        ):
            return each
    if not shows_tools(source):
        return SMOLLM2 if "SmolLM" in source and "/no_think" not in source else HERMES
    return None


def shows_tools(template: str) -> bool:
    """Whether a template's source does something with the variable `tools`."""
    return re.search(r"\btools\b", template) is not None


def shows_tool_calls(template: str) -> bool:
    """Whether a template's source does something with the tool calls of earlier turns."""
    return "tool_calls" in template
