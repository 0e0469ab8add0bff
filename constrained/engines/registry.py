"""Which engine a compiled constraint is for. Engines are imported when they are first needed."""

from __future__ import annotations

from ..spec import Compiled
from ..vocabulary import Vocabulary
from .base import Template


def load(compiled: Compiled, vocabulary: Vocabulary) -> Template:
    """The template of a compiled constraint; raises ConstraintError for a payload that the engine cannot read."""
    if compiled.engine == "xgrammar":
        from .xgrammar import XGrammarTemplate

        return XGrammarTemplate(compiled.payload, vocabulary)
    from .llguidance import LLGuidanceTemplate

    return LLGuidanceTemplate(compiled.payload, vocabulary)
