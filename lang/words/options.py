"""The options of a generation, checked as far as their types go; their ranges are the backend's to check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import ProgramMisuse
from ..ir import GenOptions

_WHOLE = ("max_tokens", "min_tokens", "top_k", "n", "seed", "logprobs")
_NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


def gen_options(**options: Any) -> GenOptions:
    """The options, with their lists as tuples. Raises ProgramMisuse for a value of the wrong type."""
    stop, ids = options.get("stop"), options.get("stop_token_ids")
    if stop is not None:
        options["stop"] = stop_texts(stop)
    if ids is not None:
        options["stop_token_ids"] = _tuple("stop_token_ids", ids, int, "a list of token ids")
    for names, kinds, what in ((_WHOLE, int, "a whole number"), (_NUMBERS, (int, float), "a number")):
        for name in names:
            value = options.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
                raise ProgramMisuse(f"{name} must be {what}, not {value!r}.")
    return GenOptions(**options)


def stop_texts(stop: Any) -> tuple[str, ...]:
    """One stop string, or several, as a tuple. Raises ProgramMisuse for what is neither."""
    return (stop,) if isinstance(stop, str) else _tuple("stop", stop, str, "a text or a list of texts")


def _tuple(name: str, values: Any, kind: type, what: str) -> tuple[Any, ...]:
    """The values, all of which must be of this kind."""
    found = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes) else (None,)
    if not all(isinstance(each, kind) for each in found):
        raise ProgramMisuse(f"{name} must be {what}, not {values!r}.")
    return found
