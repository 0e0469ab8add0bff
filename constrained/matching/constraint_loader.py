"""From a compiled constraint to completions under it: loaded once, then one cheap start for each."""

from __future__ import annotations

from ..engines.base import Template
from ..engines.registry import load
from ..spec import Compiled
from ..vocabulary import Vocabulary
from .completion import ConstrainedCompletion
from .jump_forward import JumpForward

MAX_FORCED = 32
"""How many forced tokens one edit may have unless the caller says otherwise."""


class ConstraintLoader:
    """All that the constrained completions of one model share."""

    def __init__(self, vocabulary: Vocabulary, max_forced: int = MAX_FORCED) -> None:
        """Takes a tenth of a second. max_forced: how many tokens may come with a sampled one without being sampled."""
        vocabulary.prepare()
        self._vocabulary = vocabulary
        self._jump_forward = JumpForward(vocabulary, max_forced)

    def warm(self) -> None:
        """Make now what the first constraint would have to wait for: nearly half a second's work."""
        _ = self._vocabulary.llguidance_tokenizer

    def load(self, compiled: Compiled) -> LoadedConstraint:
        """What all completions under this constraint start from. May take long, and may be called in any thread.

        Raises ConstraintError for a payload that its engine cannot read.
        """
        return LoadedConstraint(load(compiled, self._vocabulary), compiled.checks, self._jump_forward)


class LoadedConstraint:
    """One constraint, ready for any number of completions."""

    def __init__(self, template: Template, checks: str, jump_forward: JumpForward) -> None:
        self._template = template
        self._checks = checks
        self._jump_forward = jump_forward

    def start(self, *, jump_forward: bool = True) -> ConstrainedCompletion:
        """A completion without a token yet. Cheap. Without `jump_forward`, every token is sampled."""
        checker = None
        if self._checks:
            from .checks import Checker

            checker = Checker(self._checks)
        return ConstrainedCompletion(self._template.start(), checker, self._jump_forward if jump_forward else None)
