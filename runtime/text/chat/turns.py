"""A turn with tool calls, and the results that follow it, in the forms that templates take."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .messages import Message, function_of, loaded_arguments
from .tools.shown_tools import with_tools_shown
from .tools.tool_format import ToolFormat

RESULT_ROLES = ("tool", "function")
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHORT = 9  # what Mistral's templates ask of an id: so many letters and digits


@dataclass(frozen=True)
class TurnKind:
    """What a template may stumble over: text beside the calls, several calls, arguments that are not JSON, no results,
    and a user who speaks right after it."""

    content: bool = False
    several: bool = False
    broken: bool = False
    unanswered: bool = False
    user_next: bool = False


@dataclass(frozen=True)
class TurnForm:
    """calls_as_text: as the model writes them, after the turn's content. results_as_user: in users' messages.
    content_apart: content and calls in a message each. one_call: a message for each call, its results right after it.
    null_content: in place of "". ids: "short" are nine letters and digits, "named" hold the function's name and the
    call's number. named_results: results say whose they are."""

    calls_as_text: bool = False
    results_as_user: bool = False
    content_apart: bool = False
    one_call: bool = False
    null_content: bool = False
    ids: str = ""
    named_results: bool = False


def turns_of(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """The conversation in pieces: a message with calls and the results that follow it, or one other message."""
    turn: list[Message] = []
    for message in messages:
        if turn and turn[0].get("tool_calls") and message["role"] in RESULT_ROLES:
            turn.append(message)
            continue
        if turn:
            yield turn
        turn = [message]
    if turn:
        yield turn


def kind_of(turn: Sequence[Message], next_role: str) -> TurnKind:
    """next_role: of the message after the turn; "" for none."""
    message, calls = turn[0], turn[0]["tool_calls"]
    return TurnKind(
        content=bool(message["content"].strip()),
        several=len(calls) > 1,
        broken=any(isinstance(loaded_arguments(function_of(call).get("arguments")), str) for call in calls),
        unanswered=len(turn) == 1,
        user_next=next_role == "user",
    )


def reformed(turn: Sequence[Message], form: TurnForm, style: ToolFormat, before: int = 0) -> list[Message]:
    """The turn in that form. style: how calls are written as text. before: how many calls precede this turn's."""
    message, *results = turn
    if form.named_results or form.ids:
        message, results = _completed(message, results, form, before)
    if form.calls_as_text:
        owners = _owners(message["tool_calls"], results)
        results = [each for _, each in sorted(zip(owners, results), key=lambda owned: owned[0])]
        first = [*with_tools_shown(style, [message], None, "")]
    elif form.one_call and len(message["tool_calls"]) > 1:
        first, results = _one_by_one(message, results)
    else:
        first = [message]
    if form.content_apart and not form.calls_as_text and message["content"]:
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        calls = {"role": message["role"], "content": "", "tool_calls": first[0]["tool_calls"]}
        first = [rest, calls, *first[1:]]
    if form.null_content:
        first = [{**each, "content": each["content"] or None} if "tool_calls" in each else each for each in first]
    return [*first, *([as_user_text(each) for each in results] if form.results_as_user else results)]


def as_user_text(result: Message) -> Message:
    """A tool's result in a user's message."""
    return {"role": "user", "content": f"<tool_response>\n{result['content']}\n</tool_response>"}


def short_id(given: str) -> str:
    """An id of nine letters and digits, always the same for one id."""
    if len(given) == _SHORT and given.isascii() and given.isalnum():
        return given
    number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest())
    return "".join(_LETTERS[number // 62**i % 62] for i in range(_SHORT))


def _one_by_one(message: Message, results: list[Message]) -> tuple[list[Message], list[Message]]:
    calls = message["tool_calls"]
    owners = _owners(calls, results)
    made: list[Message] = []
    for i, call in enumerate(calls):
        head = {"role": message["role"], "content": ""} if i else message
        made += [
            {**head, "tool_calls": [call]},
            *(each for each, owner in zip(results, owners) if owner == i),
        ]
    return made, []


def _completed(message: Message, results: list[Message], form: TurnForm, before: int) -> tuple[Message, list[Message]]:
    """Ids and names where they are missing, or not as they have to be."""
    calls = message["tool_calls"]
    owners = _owners(calls, results)
    if form.ids:
        ids = [_id(call, before + i, form.ids) for i, call in enumerate(calls)]
        calls = [{**call, "id": each} for call, each in zip(calls, ids)]
        results = [{**each, "tool_call_id": ids[owner]} for each, owner in zip(results, owners)]
    if form.named_results:
        names = [str(function_of(call).get("name", "")) for call in calls]
        results = [{"name": names[owner], **each} for each, owner in zip(results, owners)]
    return {**message, "tool_calls": calls}, results


def _id(call: Message, number: int, kind: str) -> str:
    given = str(call.get("id") or f"call {number}")
    return short_id(given) if kind == "short" else f"functions.{function_of(call).get('name')}:{number}"


def _owners(calls: Sequence[Message], results: Sequence[Message]) -> list[int]:
    """Which call each result belongs to: by its id; without one, or with a foreign one, to the next without results."""
    of_id = {call["id"]: i for i, call in enumerate(calls) if call.get("id") is not None}
    owners = [of_id.get(each.get("tool_call_id")) for each in results]
    left = iter(sorted(set(range(len(calls))).difference(owner for owner in owners if owner is not None)))
    last = len(calls) - 1
    return [next(left, last) if owner is None else owner for owner in owners]
