"""Makes what a step gave to an entry part of its request."""

from __future__ import annotations

import numpy as np

from ...runtime.step import EntryResult, Failure
from ..wire.answers import Finish
from .request import Request


def accepted(gained: EntryResult, guesses: np.ndarray) -> int:
    """How many of the `guesses` came true."""
    count = 0
    for guess, token_id in zip(guesses.tolist(), gained.token_ids):
        if guess != token_id:
            break
        count += 1
    return count


def take_tokens(gained: EntryResult, request: Request, accepted: int) -> tuple[Finish | None, int]:
    """Appends what an entry gained to its request. accepted: of the guesses that were computed for it.

    Returns why the completion ends with it, None if it goes on; and how many leading positions of the sequence, as it
    is now, have been computed for the right tokens.
    """
    edit = gained.edit
    if edit is not None:
        request.rewind(edit.rewind)
        if edit.rewind:
            accepted = 0
    start, taken, finish = request.known, 0, None
    while finish is None and taken < len(gained.token_ids):
        finish = request.append(gained.token_ids[taken])
        taken += 1
    request.keep_logprobs(gained.logprobs[:taken])
    right = start + min(accepted, taken)
    if edit is not None:
        request.held = min(edit.held, request.produced)
    if gained.failure is not None:
        return failed(request, gained.failure), right
    is_over = edit is not None and edit.complete and taken == len(gained.token_ids)
    if is_over and (finish is None or finish.reason == "length"):
        return Finish("stop"), right
    return finish, right


def failed(request: Request, failure: Failure) -> Finish:
    """How a request ends whose entry failed."""
    match failure.kind:
        case "not finite":
            return Finish("error", message="the model's output for this request is not finite (NaN or infinity)")
        case "matcher":
            engine = request.grammar.engine if request.grammar is not None else "no"
            return Finish("error", message=f"the constraint failed in its engine, {engine}: {failure.message}")
        case "grammar":
            return Finish("error", message=failure.message, fault="request")
