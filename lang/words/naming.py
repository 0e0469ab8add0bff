"""A decorator for the words of the language: an unknown argument is refused with the name that was probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ...constrained.near_names import probably_meant
from ...runtime.declaration import declared, plain_types
from ...runtime.sampling.params import SamplingParams

P = ParamSpec("P")
R = TypeVar("R")


def naming(word: Callable[P, R]) -> Callable[P, R]:
    """`word` as it is, but that its TypeError for an unknown argument names a known one.

    Where it takes `**sampling`, these are the declared sampling fields that it does not name itself, and the
    signature says so.
    """
    signature = _spelled_out(inspect.signature(word))
    known = signature.parameters

    @functools.wraps(word)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                near = probably_meant(name, known)
                hint = f"; did you mean {near!r}?" if near else f"; it takes {', '.join(known)}."
                raise TypeError(f"{word.__name__} has no argument {name!r}{hint}")
        return word(*args, **kwargs)

    checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    return checked


def _spelled_out(signature: inspect.Signature) -> inspect.Signature:
    named = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    if len(named) == len(signature.parameters):
        return signature
    types = plain_types(SamplingParams)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=types[name] | None)
        for name, field in declared(SamplingParams).items()
        if field.language and name not in signature.parameters
    ]
    return signature.replace(parameters=[*named, *more])
