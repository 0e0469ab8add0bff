"""For what somebody wrote that does not exist: the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, or that this one only adds to ("tp_size": "tp"); None for none."""
    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    return next(iter(close or [each for each in names if name.startswith(each + "_")]), None)
