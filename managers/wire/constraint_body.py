"""The body of a constraint as it goes from process to process: JSON text of a size that the compilers take.

For whoever writes one: the front from a request's fields, the tokenizer process from the tools of a chat.
"""

from __future__ import annotations

import json
from typing import Any

from ...constrained.spec import MAX_CONSTRAINT_BYTES
from .errors import InvalidRequest


def json_text(value: Any) -> str:
    """A value as compact JSON text, keys in their order. Raises ValueError for numbers that are not finite."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def check_size(body: str, field: str) -> None:
    """Raise InvalidRequest for the body of a constraint that is too large to be compiled."""
    if len(body.encode("utf-8", "surrogatepass")) > MAX_CONSTRAINT_BYTES:
        raise InvalidRequest.about((field,), f"may have {MAX_CONSTRAINT_BYTES} bytes at most.")
