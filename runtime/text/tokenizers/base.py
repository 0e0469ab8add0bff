"""The one interface to a model's tokenizer.

Text given to a tokenizer never yields a control token unless the caller allows it. This module must not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

Fragment = str | int
"""A run of plain text, or the id of a token that stands as it is."""


class Tokenizer(ABC):
    """Text to token ids and back, equal to the model's reference implementation.

    vocab_size: ids are 0 .. vocab_size - 1 (some may have no token; their bytes are empty).
    eos_ids: every id that ends a turn. bos_id: the start token, if there is one.
    adds_bos: the reference puts BOS before a text by itself.
    control_ids: ids of control tokens; text yields them only where `allow_control` says so.
    named_tokens: the special tokens that templates know by name, such as "bos_token" and "eos_token", as text.
    chat_templates: the Jinja sources that came with the model, by name; "default" is the usual one.
    """

    vocab_size: int
    eos_ids: frozenset[int]
    bos_id: int | None
    adds_bos: bool
    control_ids: frozenset[int]
    named_tokens: dict[str, str]
    chat_templates: dict[str, str]

    @property
    def chat_template(self) -> str | None:
        """The usual chat template, if there is one."""
        return self.chat_templates.get("default")

    def encode(self, text: str, *, add_bos: bool = False, allow_control: bool = False) -> list[int]:
        """Token ids of `text`. Without `allow_control`, what looks like a control token is plain text.

        A lone surrogate, which no UTF-8 text can hold, counts as U+FFFD. `add_bos` needs a model that has a BOS token
        (else ValueError).
        """
        ids = self._encode(_well_formed(text), allow_control)
        if not add_bos:
            return ids
        if self.bos_id is None:
            raise ValueError("this tokenizer has no BOS token")
        return [self.bos_id, *ids]

    def encode_fragments(self, fragments: Sequence[Fragment]) -> list[int]:
        """Token ids of one text given in fragments: text is plain, ids stay as they are.

        Equal to `encode(text, allow_control=True)` wherever the fragments are what that would split the text into.
        """
        return self._encode_fragments([f if isinstance(f, int) else _well_formed(f) for f in fragments if f != ""])

    def token_text(self, token_id: int) -> str:
        """The token's bytes as text, for showing; U+FFFD stands for what is not whole UTF-8."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    @abstractmethod
    def split_control(self, text: str) -> list[Fragment]:
        """`text` split at its control tokens, as `encode` with `allow_control` sees them; no fragment is empty."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """Exactly what the token adds to a text. Control tokens: their own text in UTF-8. No such token: nothing."""

    @abstractmethod
    def _encode(self, text: str, allow_control: bool) -> list[int]: ...

    @abstractmethod
    def _encode_fragments(self, fragments: list[Fragment]) -> list[int]: ...


def _well_formed(text: str) -> str:
    """`text` with lone surrogates (from JSON escapes such as "\\ud800") replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
