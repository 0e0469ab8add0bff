"""The text of a state, or of one variable, as it comes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from ..backends.base import Backend
from ..errors import ProgramError, ProgramMisuse, UnknownVariable
from ..history import History, Segment
from ..ir import RoleBegin, RoleEnd, Text
from .loop import loop_thread
from .program_steps import Item
from .stream import Stream
from .variables import Generated, Reasoning, Variable


def text_stream(
    items: Stream[Item], variables: Mapping[str, Variable], name: str | None, backend: Backend
) -> Stream[str]:
    """The text's pieces: of the whole state, or of the variable `name`, which may be yet to come.

    It ends with the state or the variable, with the error of what failed, or with UnknownVariable.
    """
    pieces: Stream[str] = Stream()
    loop_thread().submit(_fill(pieces, items, variables, name, backend))
    return pieces


async def _fill(
    pieces: Stream[str], items: Stream[Item], variables: Mapping[str, Variable], name: str | None, backend: Backend
) -> None:
    try:
        if name is None:
            await _whole(pieces, items, backend)
        else:
            await when_known(items, variables, name)
            if name not in variables:
                raise UnknownVariable(f"The program has ended, and set no variable {name!r}.")
            await _one(pieces, variables[name])
    except ProgramError as error:
        pieces.close(error.again())
    except Exception as error:
        pieces.close(error)
    else:
        pieces.close()


async def _whole(pieces: Stream[str], items: Stream[Item], backend: Backend) -> None:
    """Every item's text; what the chat template puts around messages comes before what follows there."""
    history: History = []
    shown, at_edge = "", False

    async def catch_up() -> str:
        text = await backend.text(history)
        pieces.put(text[len(shown) :])
        return text

    async for item in items:
        if isinstance(item, RoleBegin | RoleEnd):
            history.append(item)
            at_edge = True
            continue
        if at_edge:
            shown, at_edge = await catch_up(), False
        if isinstance(item, Text):
            pieces.put(item.text)
            shown += item.text
            history.append(Segment.of(item.text))
        else:
            async for piece in item.pieces:
                pieces.put(piece)
                shown += piece
            history.append((await item.ready()).segment)
    if at_edge:
        await catch_up()


async def when_known(items: Stream[Item], variables: Mapping[str, Variable], name: str | None) -> None:
    """Wait until the variable is there, or else (and for None) until the state has ended."""
    if name not in variables:
        with contextlib.suppress(Exception):  # whoever reads the state then gets that error
            async for _ in items:  # a variable comes with an item, or before the end
                if name in variables:
                    return


async def _one(pieces: Stream[str], variable: Variable) -> None:
    if isinstance(variable, Generated) and not isinstance(variable, Reasoning):
        async for piece in variable.output.pieces:
            pieces.put(piece)
        return
    for output in variable.outputs():
        await output.settled()
    value = variable.value()
    if not isinstance(value, str):
        raise ProgramMisuse(f"Only text can be shown as it comes; this variable is of type {type(value).__name__}.")
    pieces.put(value)
