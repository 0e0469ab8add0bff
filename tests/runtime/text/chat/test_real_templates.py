"""Real chat templates: every message of a conversation leaves its text in the prompt, and where transformers renders
without leaving anything out, the prompt is the one that it renders.

The templates are the *.jinja files in the folder that SAPWOOD_CHAT_TEMPLATES names, such as models/templates of
llama.cpp (which the llama-cpp-python sdist carries in vendor/); without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood.runtime.text.chat.messages import normalize, with_arguments
from sapwood.runtime.text.chat.prompts import ChatPrompts
from sapwood.runtime.text.tokenizers.base import Fragment, Tokenizer

transformers = pytest.importorskip("transformers")

from transformers.utils.chat_template_utils import render_jinja_template  # noqa: E402

FOLDER = os.environ.get("SAPWOOD_CHAT_TEMPLATES")
REAL = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
SPECIAL = re.compile(
    r"<[|｜][^|｜<>\s{}'\"]{1,40}[|｜]>|\[/?[A-Z_]{2,30}\]|<start_of_turn>|<end_of_turn>|<SPECIAL_\d+>"
)
MORE = {"functions": "[]", "datetime": "today"}  # variables that one of them does not go without
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string", "description": "what"}}},
    },
}
SHORT, FOREIGN = ("abcDEF123", "abcDEF124"), ("call_abcdefghijklmn", "call_opqrstuvwxyz12")

Messages = list[dict[str, Any]]


class Writer:
    """Messages with texts that are all different."""

    def __init__(self, decoration: str = "") -> None:
        self._count = 0
        self._decoration = decoration

    def text(self) -> str:
        self._count += 1
        return f"Word{self._count}{self._decoration}"

    def says(self, *roles: str) -> Messages:
        return [{"role": role, "content": self.text()} for role in roles]

    def calls(self, ids: tuple[str, ...], *, content: bool = False, arguments: str | None = None) -> Messages:
        """An assistant's turn with calls, and the results in the opposite order."""
        given = [json.dumps({"q": self.text()}) if arguments is None else arguments for _ in ids]
        made = [
            {"id": i, "type": "function", "function": {"name": f"look_{i[-3:]}", "arguments": each}}
            for i, each in zip(ids, given)
        ]
        results = [{"role": "tool", "tool_call_id": i, "content": self.text()} for i in reversed(ids)]
        return [{"role": "assistant", "content": self.text() if content else None, "tool_calls": made}, *results]


def conversations(decoration: str = "") -> Iterator[tuple[str, Messages]]:
    w = Writer(decoration)
    for roles in (
        "user", "user assistant user", "system user", "system user assistant user", "developer user",
        "system developer user", "system system user", "user assistant developer user", "user assistant system user",
        "system user assistant system user", "user user", "user user assistant user user",
        "user assistant assistant user", "assistant user", "system assistant user", "user assistant", "system",
        "assistant", "user system", "system user assistant system", "user function assistant user",
        "user tool assistant user", "user tool", "tool user",
    ):  # fmt: skip
        yield roles, w.says(*roles.split())
    after = ("assistant", "user")
    for name, ids in (("short ids", SHORT), ("foreign ids", FOREIGN)):
        for content in (False, True):
            said = f"{name}, {'content' if content else 'none'}"
            yield f"one call, {said}", [*w.says("user"), *w.calls(ids[:1], content=content)]
            yield f"one call and more, {said}", [*w.says("user"), *w.calls(ids[:1], content=content), *w.says(*after)]
            yield f"two calls, {said}", [*w.says("system", "user"), *w.calls(ids, content=content), *w.says(*after)]
        steps = [each for n in (0, 1) for each in w.calls((ids[n],), content=n > 0)]
        yield f"steps, {name}", [*w.says("user"), *steps, *w.says(*after)]
    yield "a call without a result", [*w.says("user"), w.calls(SHORT[:1])[0]]
    for arguments in ("", " ", "null", "[]", "{}"):
        called = w.calls(SHORT[:1], arguments=arguments)
        yield f"arguments {arguments!r}", [*w.says("user"), *called, *w.says(*after)]
    yield "cut off", [*w.says("user"), *w.calls(SHORT[:1], arguments='{"q": "Cut1'), *w.says(*after)]


def texts_of(messages: Messages) -> list[str]:
    """All that has to be in a prompt."""
    texts = [message["content"] for message in messages if message["content"]]
    for call in (call for message in messages for call in message.get("tool_calls", ())):
        texts += [call["function"]["name"], *re.findall(r"Word\d+|Cut\d+", call["function"]["arguments"])]
    return texts


def by_transformers(source: str, tokenizer: Tokenizer, messages: Messages, tools: list[Any] | None) -> str:
    [rendered], _ = render_jinja_template(
        [with_arguments(normalize(messages), as_objects=True)],
        tools=tools,
        chat_template=source,
        **{**tokenizer.named_tokens, "add_generation_prompt": True, **MORE},
    )
    return rendered


def as_known(messages: Messages, source: str) -> Messages:
    """`developer` is the newer name of `system`."""
    known = "'developer'" in source or '"developer"' in source
    return [{**m, "role": "system"} if m["role"] == "developer" and not known else m for m in messages]


@pytest.mark.skipif(not REAL, reason="SAPWOOD_CHAT_TEMPLATES names no folder of templates")
@pytest.mark.parametrize("path", REAL, ids=[path.stem for path in REAL])
def test_nothing_is_left_out(
    with_control_tokens: Callable[[Any], Tokenizer], shown: Callable[[Tokenizer, list[Fragment]], str], path: Path
) -> None:
    source = path.read_text(encoding="utf-8")
    tokenizer = with_control_tokens(SPECIAL.findall(source))
    prompts = ChatPrompts({"default": source}, tokenizer)
    equal = 0
    for name, messages in conversations():
        for tools in (None, [TOOL]):
            text = shown(tokenizer, prompts.render(messages, tools, template_kwargs=MORE))
            wanted = [*texts_of(messages), *(["look_up"] if tools else [])]
            assert [each for each in wanted if each not in text] == [], name
            try:
                expected = by_transformers(source, tokenizer, as_known(messages, source), tools)
            except Exception:  # it refuses the conversation
                continue
            if all(each in expected for each in wanted):
                assert text == expected, name
                equal += 1
    assert equal


@pytest.mark.skipif(not REAL, reason="SAPWOOD_CHAT_TEMPLATES names no folder of templates")
@pytest.mark.parametrize("path", REAL, ids=[path.stem for path in REAL])
def test_no_text_becomes_a_control_token_by_being_folded(
    with_control_tokens: Callable[[Any], Tokenizer], shown: Callable[[Tokenizer, list[Fragment]], str], path: Path
) -> None:
    source = path.read_text(encoding="utf-8")
    special = SPECIAL.findall(source)
    tokenizer = with_control_tokens(special)
    prompts = ChatPrompts({"default": source}, tokenizer)
    evil = "".join(sorted({each for each in special if "think" not in each}))

    def control(messages: Messages) -> list[Fragment]:
        return [each for each in prompts.render(messages, template_kwargs=MORE) if isinstance(each, int)]

    for (name, harmful), (_, harmless) in zip(conversations(evil), conversations("x")):
        assert control(harmful) == control(harmless), name
