"""Finds which known name a misspelt one was meant to be: `surely_meant` where the name may be there on purpose, and
`probably_meant` where it is wrong in any case. For whoever reads names that people write; it must import nothing heavy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_CUTOFF = 0.85
_SHORTEST = 4  # of known names that are compared letter by letter: a short word is near too many others
_LONGEST = 40
_ON_PURPOSE = ("x-", "$", "_")  # extensions, and keywords that somebody switched off


def surely_meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name`, which is not known, can only be a misspelling of; None for none.

    Names that differ in nothing but digits (uuid, uuid4) are two names.
    """
    if name.lower().startswith(_ON_PURPOSE):
        return None
    names = sorted(known)
    for each in names:
        if _plain(each) == _plain(name):
            return each
    others = [each for each in names if len(each) >= _SHORTEST and _letters(each) != _letters(name)]
    swapped = {name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(min(len(name), _LONGEST) - 1)}
    for each in others:
        if each in swapped:
            return each
    if len(name) > _LONGEST:
        return None
    return next(iter(difflib.get_close_matches(name, others, 1, _CUTOFF)), None)


def probably_meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, or that this one only adds to ("tp_size": "tp"); None for none."""
    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    return next(iter(close or [each for each in names if name.startswith(each + "_")]), None)


def _plain(name: str) -> str:
    """Without what spellings differ in: minLength and min_length are the same."""
    return re.sub(r"[\s_-]", "", name).casefold()


def _letters(name: str) -> str:
    return re.sub(r"[0-9]", "", name)
