"""How models mark what they think before they answer: a text on each side of it. Which one is a matter of the model.

Plain data: it must know nothing of requests.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ..tokenizers.base import Tokenizer

Begins = Literal["inside", "answer", "unknown"]
"""Where a completion begins: inside the thinking, which its prompt has opened; in the answer; or the model decides."""


@dataclass(frozen=True)
class ReasoningFormat:
    """opening and closing: the texts around the thinking. in_template: the chat template speaks of them; where it does
    not, the vocabulary does, and the model may know them from elsewhere."""

    name: str
    opening: str
    closing: str
    in_template: bool = True

    def control_ids(self, tokenizer: Tokenizer) -> dict[int, str]:
        """The control tokens that the marks are made of, with their texts."""
        texts = {i: tokenizer.token_text(i) for i in tokenizer.control_ids}
        return {i: text for i, text in texts.items() if text and (text in self.opening or text in self.closing)}


_FORMATS = {
    each.name: each
    for each in (
        ReasoningFormat("think", "<think>", "</think>"),
        ReasoningFormat("hunyuan", "<think:opensource>", "</think:opensource>"),
        ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
        ReasoningFormat("minimax", "<mm:think>", "</mm:think>"),
        ReasoningFormat("thinking", "<thinking>", "</thinking>"),
        ReasoningFormat("thought", "<thought>", "</thought>"),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("command", "<|START_THINKING|>", "<|END_THINKING|>"),
        ReasoningFormat("kimi", "◁think▷", "◁/think▷"),
        ReasoningFormat("gemma", "<|channel>thought\n", "<channel|>"),
        ReasoningFormat("apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
        ReasoningFormat("apriel", "Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
        ReasoningFormat("granite", "Here is my thought process:", "Here is my response:"),
    )
}

REASONING_FORMATS = tuple(_FORMATS)


def reasoning_format(wanted: str, words: Collection[str], tokenizer: Tokenizer) -> ReasoningFormat | None:
    """The format of this name; for "auto" the one that a chat template means, or the vocabulary. None: the model marks
    no thinking, or (wanted "none") its marks are to stay text.

    words: the texts that the template itself contains.
    """
    if wanted != "auto":
        return _FORMATS.get(wanted)
    joined = "\0".join(words)
    for each in _FORMATS.values():
        if each.closing in joined:
            return each
    for each in _FORMATS.values():
        if _is_token(each.opening, tokenizer) and _is_token(each.closing, tokenizer):
            return ReasoningFormat(each.name, each.opening, each.closing, in_template=False)
    return None


def _is_token(mark: str, tokenizer: Tokenizer) -> bool:
    """Whether the vocabulary has a token for this text."""
    ids = tokenizer.encode(mark, allow_control=True)
    return len(ids) == 1 and tokenizer.token_bytes(ids[0]) == mark.encode()
