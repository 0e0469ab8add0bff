"""From a compiled constraint to completions under it: loaded once, then one cheap start for each."""

from __future__ import annotations

from functools import partial

from ..engines.base import Template
from ..engines.registry import load
from ..spec import Compiled
from ..vocabulary import Vocabulary
from .completion import ConstrainedCompletion
from .interface import TokenConstraint
from .jump_forward import JumpForward
from .thinking import ThinkingCompletion

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
        template = None if compiled.engine == "none" else load(compiled, self._vocabulary)
        return LoadedConstraint(template, compiled, self._vocabulary, self._jump_forward)


class LoadedConstraint:
    """One constraint, ready for any number of completions."""

    def __init__(
        self, template: Template | None, compiled: Compiled, vocabulary: Vocabulary, jump_forward: JumpForward
    ) -> None:
        """template: None where any answer is allowed, after thinking that is not."""
        self._template = template
        self._checks = compiled.checks
        self._thinking = compiled.thinking
        self._vocabulary = vocabulary
        self._jump_forward = jump_forward

    def start(self, *, jump_forward: bool = True) -> TokenConstraint:
        """A completion without a token yet. Cheap. Without `jump_forward`, every token is sampled."""
        answer = None
        if self._template is not None:
            answer = partial(self._answer, self._template)
        if self._thinking is not None:
            return ThinkingCompletion(self._thinking, self._vocabulary, answer, jump_forward=jump_forward)
        assert answer is not None
        return answer(jump_forward)

    def _answer(self, template: Template, jump_forward: bool) -> ConstrainedCompletion:
        checker = None
        if self._checks:
            from .checks import Checker

            checker = Checker(self._checks)
        return ConstrainedCompletion(template.start(), checker, self._jump_forward if jump_forward else None)
