"""Pages of items, and the query fields that ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from ...wire.errors import InvalidRequest
from .input_items import item_kind
from .response_objects import ItemList

MAX_PAGE, USUAL_PAGE = 100, 20


class PageQuery(msgspec.Struct, frozen=True):
    """limit: items of a page. after: the id of the last item of the page before. ascending: oldest first."""

    limit: int
    after: str | None
    ascending: bool

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Raises InvalidRequest."""
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest.about(("order",), f"must be 'asc' or 'desc'; not {order!r}.")
        return cls(read_number(query, "limit", USUAL_PAGE, 1, MAX_PAGE), query.get("after"), order == "asc")


def read_number(query: Mapping[str, str], name: str, default: int, lowest: int, highest: int) -> int:
    """A number of a query. Raises InvalidRequest."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and lowest <= int(text) <= highest):
        raise InvalidRequest.about((name,), f"must be between {lowest} and {highest}; not {text!r}.")
    return int(text)


def input_page(items: Sequence[dict[str, Any]], query: PageQuery) -> ItemList:
    """A page of a response's input. Raises InvalidRequest where no item has the id `after`."""
    ordered = list(items) if query.ascending else list(items)[::-1]
    if query.after is not None:
        at = next((i for i, item in enumerate(ordered) if item["id"] == query.after), None)
        if at is None:
            raise InvalidRequest.about(("after",), f"is {query.after!r}, which is no item of this response.")
        ordered = ordered[at + 1 :]
    page = [_listed(item) for item in ordered[: query.limit]]
    first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    return ItemList(data=page, first_id=first, last_id=last, has_more=len(ordered) > query.limit)


def _listed(item: dict[str, Any]) -> dict[str, Any]:
    """An item in its long form."""
    kind = item_kind(item)
    listed = {**item, "type": kind}
    if kind != "reasoning":
        listed.setdefault("status", "completed")
    if kind == "reasoning":
        listed["summary"] = item.get("summary") or []
    elif kind == "message" and isinstance(item.get("content"), str):
        said = item["role"] == "assistant"
        part = {"type": "output_text", "annotations": []} if said else {"type": "input_text"}
        listed["content"] = [{**part, "text": item["content"]}]
    return listed
