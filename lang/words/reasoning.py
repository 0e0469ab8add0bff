"""Telling a model's reasoning from its answer."""

from __future__ import annotations

from ..errors import ProgramMisuse

TAGS = {
    "deepseek-r1": ("<think>", "</think>"),
    "qwen3": ("<think>", "</think>"),
    "qwen3-thinking": ("<think>", "</think>"),
    "glm45": ("<think>", "</think>"),
    "kimi": ("◁think▷", "◁/think▷"),
}
"""For each model type the texts around its reasoning."""


def tags_of(model_type: str) -> tuple[str, str]:
    """The texts around the reasoning of a model type. Raises ProgramMisuse for an unknown one."""
    if model_type not in TAGS:
        raise ProgramMisuse(f"model_type must be one of {', '.join(TAGS)}; not {model_type!r}.")
    return TAGS[model_type]


def separate(text: str, tags: tuple[str, str]) -> tuple[str, str]:
    """(reasoning, answer) of a completion, the tags and the space around both taken off.

    The opening tag may be missing, as chat templates often put it into the prompt: a closing tag is enough. Without a
    closing one, all after an opening tag is reasoning, and all is the answer where there is no tag.
    """
    opening, closing = tags
    head, found, tail = text.partition(closing)
    if found:
        return head.strip().removeprefix(opening).strip(), tail.strip()
    before, opened, inside = text.partition(opening)
    return (inside.strip(), before.strip()) if opened else ("", text)
