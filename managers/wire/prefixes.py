"""What passes between scheduler and worker beside the steps themselves: prefixes that a tier has to load first."""

from __future__ import annotations

from ...runtime.records import Message


class LoadPrefix(Message, frozen=True):
    """Scheduler to worker: load what the tier holds under this key beside the steps, then say `PrefixLoaded`."""

    key: str


class PrefixLoaded(Message, frozen=True):
    """Worker to scheduler: what the tier holds under this key can be copied in, or cannot: then `error` says why."""

    key: str
    error: str = ""
