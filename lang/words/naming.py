"""A decorator for the words of the language: an unknown argument is refused with the name that was probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ...constrained.near_names import probably_meant

P = ParamSpec("P")
R = TypeVar("R")


def naming(word: Callable[P, R]) -> Callable[P, R]:
    """`word` as it is, but that its TypeError for an unknown argument names a known one."""
    known = inspect.signature(word).parameters

    @functools.wraps(word)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                near = probably_meant(name, known)
                hint = f"; did you mean {near!r}?" if near else f"; it takes {', '.join(known)}."
                raise TypeError(f"{word.__name__} has no argument {name!r}{hint}")
        return word(*args, **kwargs)

    return checked
