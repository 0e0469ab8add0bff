"""What passes between scheduler and worker beside the steps themselves (`runtime.step`): the grammars of rows."""

from __future__ import annotations

from ...constrained.spec import Compiled
from ...runtime.records import Message


class PrepareGrammar(Message, frozen=True):
    """Scheduler to worker: requests with this grammar will come; load it beside the steps, then say `GrammarReady`."""

    grammar: Compiled


class ForgetGrammar(Message, frozen=True):
    """Scheduler to worker: no row will be opened with the grammar of this key, unless it is prepared anew."""

    key: str


class GrammarReady(Message, frozen=True):
    """Worker to scheduler: the grammar of this key is loaded, or cannot be: then `error` says why."""

    key: str
    error: str = ""
