"""Where a prompt left the cached path, as its sender reads it: which message, and what changed since last time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.managers.tokenizer import cache_report
from sapwood.managers.tokenizer.cache_report import CacheReports
from sapwood.managers.tokenizer.prompt_text import PromptText, characters_begun
from sapwood.managers.wire.answers import CacheMiss, CacheReport, MissReason, TextChunk
from sapwood.managers.wire.requests import Chat, Submit
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.text.tokenizers.base import Fragment

START, END, WORD = 256, 257, 258
Messages = list[dict[str, Any]]


class ByteTokenizer:
    """A token for each byte, for <s> and </s>, and for the text "ab", which one token may be as well as two."""

    vocab_size = 259

    def token_bytes(self, token_id: int) -> bytes:
        return {START: b"<s>", END: b"</s>", WORD: b"ab"}.get(token_id) or bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode()


TOKENIZER: Any = ByteTokenizer()
CHARACTERS = characters_begun([TOKENIZER.token_bytes(i) for i in range(TOKENIZER.vocab_size)])


def prompt_of(fragments: list[Fragment]) -> PromptText:
    ids = [token for each in fragments for token in ([each] if isinstance(each, int) else each.encode())]
    return PromptText(TOKENIZER, CHARACTERS, np.array(ids, dtype=np.int32), fragments)


def rendered(messages: Messages, tools: str = "", *, strip: str = "", opened: bool = True) -> list[Fragment]:
    """A small chat template; `strip` is a text that it leaves out of the answers of before."""
    fragments: list[Fragment] = [tools]
    for each in messages:
        content = each["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        if strip and each["role"] == "assistant":
            text = text.replace(strip, "")
        fragments += [START, f"{each['role']}\n{text}", END, "\n"]
    return [*fragments, START, "assistant\n"] if opened else fragments


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


texts = st.text(st.characters(codec="utf-8"), max_size=30).map(str.strip)
roles = st.sampled_from(["system", "user", "assistant"])


@given(st.lists(st.tuples(roles, texts, st.booleans()), min_size=1, max_size=8), st.data())
def test_a_place_in_a_messages_text_is_found_in_that_message(
    turns: list[tuple[str, str, bool]], data: st.DataObject
) -> None:
    """However the texts contain each other; only one so short that it stands in the template's own could be missed."""
    marked = [f"{i:~>4}{text}{i:~>4}" for i, (_, text, _) in enumerate(turns)]
    messages = [
        turn(role, [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}] if parts else text)
        for (role, _, parts), text in zip(turns, marked)
    ]
    prompt = prompt_of(rendered(messages))
    index = data.draw(st.integers(0, len(messages) - 1))
    start = len("".join(f"<s>{m['role']}\n{text}</s>\n" for m, text in zip(messages[:index], marked[:index])).encode())
    start += len(f"<s>{messages[index]['role']}\n") - 2 * (index + 1) - 3 * index  # <s> and </s> are a token each
    position = start + data.draw(st.integers(0, len(marked[index].encode()) - 1))
    assert prompt.message_at(position, messages, ended=False) == (index, True)
    assert prompt._from_start(position, messages, ended=False) == (index, True)
    assert prompt._from_end(position, messages, ended=False) == (index, True)


def test_what_the_template_puts_before_a_message_belongs_to_it_and_what_ends_one_to_that() -> None:
    messages = [turn("system", "Be kind."), turn("user", "Hello there")]
    prompt = prompt_of(rendered(messages, tools="TOOLS"))
    text = "TOOLS<s>system\nBe kind.</s>\n<s>user\nHello there</s>\n<s>assistant\n"
    ids = prompt.ids.tolist()
    ends = [i for i, token in enumerate(ids) if token == END]
    for message_at in (prompt.message_at, prompt._from_start, prompt._from_end):
        assert message_at(2, messages, ended=False) == (0, False)
        assert message_at(ends[0] - 1, messages, ended=False) == (0, True)
        assert message_at(ends[0], messages, ended=False)[0] == 0
        assert message_at(ends[0], messages, ended=True) == (1, False)
        assert message_at(ends[0] + 1, messages, ended=False) == (1, False)
        assert message_at(len(ids) - 1, messages, ended=False) == (2, False)
    assert [prompt.character(i) for i in (0, 5, 6, len(ids))] == [0, 5, 8, len(text)]


def test_a_message_that_the_template_shows_otherwise_begins_where_the_one_before_it_ends() -> None:
    messages = [turn("user", "one two"), turn("assistant", "<think>long</think>three"), turn("user", "four five")]
    prompt = prompt_of(rendered(messages, strip="<think>long</think>"))
    three = prompt.ids.tolist().index(END) + 14
    for message_at in (prompt.message_at, prompt._from_start, prompt._from_end):
        assert message_at(three, messages, ended=False)[0] == 1


@given(st.text(), st.integers(0, 50))
def test_characters_are_counted_by_tokens_also_inside_one(text: str, position: int) -> None:
    data = text.encode("utf-8", "ignore")
    prompt = PromptText(TOKENIZER, CHARACTERS, np.array(list(data), dtype=np.int32), None)
    begun = sum(byte & 0xC0 != 0x80 for byte in data[:position])
    assert prompt.character(position) == begun


# --- what changed ---------------------------------------------------------------------------------------------------


class Talk:
    """Requests one after the other, with the tree's part played by comparing with what was sent before."""

    def __init__(self, *, quotes: bool = True) -> None:
        self.reports = CacheReports(quotes=quotes)
        self.paths: dict[str, list[list[int]]] = {}
        self.count = 0

    def ask(self, messages: Messages, answer: str = "", *, namespace: str = "", **chat: Any) -> CacheReport:
        strip, generated = chat.pop("strip", ""), chat.pop("generated", answer)
        tools = chat.get("tools")
        prompt = prompt_of(rendered(messages, tools=str(tools or ""), strip=strip))
        ids = prompt.ids.tolist()
        position, cached = 0, []
        for path in self.paths.get(namespace, []):
            same = next((i for i, (a, b) in enumerate(zip(path, ids)) if a != b), min(len(path), len(ids)))
            if same >= position:
                position, cached = same, path[same : same + 8]
        self.count += 1
        submit = Submit(
            f"r{self.count}",
            Sampling(max_tokens=1, seed=0),
            chat=Chat(messages, **chat),
            namespace=namespace,
            explain_cache=True,
        )
        report = self.reports.report(submit, prompt, CacheMiss(position, "never_seen", cached))
        self.reports.said(submit.request_id, TextChunk(submit.request_id, 0, answer, [], 0, 0, 0, []))
        self.reports.said(submit.request_id, TextChunk(submit.request_id, 1, "another sample", [], 0, 0, 0, []))
        self.paths.setdefault(namespace, []).append(ids + list(generated.encode()))
        return report


SYSTEM = turn("system", "You are an agent.")


def test_a_next_turn_has_simply_not_been_seen() -> None:
    talk = Talk()
    first = [SYSTEM, turn("user", "Hello")]
    assert talk.ask(first, "Hi.").reason == "never_seen"
    report = talk.ask([*first, turn("assistant", "Hi."), turn("user", "Bye")])
    assert (report.reason, report.cached_text) == ("never_seen", "")
    assert report.prompt_text.startswith("</s>\n<s>use")
    assert (report.message, report.role) == (3, "user")


def test_a_line_that_the_sender_changed_is_quoted_with_what_it_was() -> None:
    talk = Talk()
    talk.ask([turn("system", "Today is Monday. Be kind."), turn("user", "Hello")])
    report = talk.ask([turn("system", "Today is Friday. Be kind."), turn("user", "Hello")])
    assert (report.message, report.role, report.reason) == (0, "system", "never_seen")
    assert report.cached_text.startswith("Monday")
    assert report.prompt_text.startswith("Friday")
    assert report.character == len("<s>system\nToday is ")


def test_an_answer_that_the_template_strips_and_one_that_the_client_changes_are_told_apart() -> None:
    first = [SYSTEM, turn("user", "Hello")]
    talk = Talk()
    talk.ask(first, "<think>hm</think>Hi.")
    told = [*first, turn("assistant", "<think>hm</think>Hi."), turn("user", "Bye")]
    report = talk.ask(told, strip="<think>hm</think>")
    assert (report.message, report.role) == (2, "assistant")
    assert report.reason == "template_changed_earlier_text"
    talk = Talk()
    talk.ask(first, "Hi, friend.")
    report = talk.ask([*first, turn("assistant", "Hi, foe."), turn("user", "Bye")])
    assert (report.message, report.reason) == (2, "answer_changed")


def test_an_answer_that_a_stop_string_ended_is_as_it_was() -> None:
    talk = Talk()
    first = [SYSTEM, turn("user", "Hello")]
    talk.ask(first, "Hi.", generated="Hi.\nUser: and so on")
    report = talk.ask([*first, turn("assistant", "Hi."), turn("user", "Bye")])
    assert (report.message, report.reason, report.cached_text) == (2, "never_seen", "\nUser: a")


def test_a_template_that_now_shows_an_earlier_answer_otherwise_changed_earlier_text() -> None:
    talk = Talk()
    first = [SYSTEM, turn("user", "Hello"), turn("assistant", "<think>hm</think>Hi."), turn("user", "Again")]
    talk.ask(first, "Yes?")
    report = talk.ask([*first, turn("assistant", "Yes?"), turn("user", "Bye")], strip="<think>hm</think>")
    assert (report.message, report.reason) == (2, "template_changed_earlier_text")
    assert (report.cached_text, report.prompt_text) == ("<think>h", "Hi.</s>\n<s>us")


def test_other_tools_and_other_options_of_the_template_are_named() -> None:
    talk = Talk()
    messages = [SYSTEM, turn("user", "Hello")]
    talk.ask(messages, tools=[{"name": "a"}])
    assert talk.ask(messages, tools=[{"name": "b"}]).reason == "tools_changed"
    assert talk.ask([SYSTEM, turn("user", "Other")], tools=[{"name": "c"}]).reason == "tools_changed"


def test_one_text_in_other_tokens_is_told_from_another_text() -> None:
    reports = CacheReports(quotes=True)
    submit = Submit("r", Sampling(max_tokens=1, seed=0), prompt=["xabc"], explain_cache=True)
    prompt = PromptText(TOKENIZER, CHARACTERS, np.array([120, WORD, 99], dtype=np.int32), None)
    report = reports.report(submit, prompt, CacheMiss(1, "never_seen", [97, 98, 99]))
    assert (report.reason, report.character, report.message) == ("tokenized_otherwise", 1, None)
    assert reports.report(submit, prompt, CacheMiss(1, "never_seen", [97, 98, 100])).reason == "never_seen"
    assert reports.report(submit, prompt, CacheMiss(1, "evicted", [])).reason == "evicted"
    half = PromptText(TOKENIZER, CHARACTERS, np.array([120, *"é".encode(), 98], dtype=np.int32), None)
    other_half = CacheMiss(1, "never_seen", [*"è".encode()])
    report = reports.report(submit, half, other_half)
    assert (report.reason, report.prompt_text, report.cached_text) == ("never_seen", "éb", "è")


def test_nothing_is_said_of_another_namespace_and_nothing_quoted_where_that_is_off() -> None:
    messages = [SYSTEM, turn("user", "Hello")]
    talk = Talk()
    talk.ask(messages, tools=[{"name": "a"}], namespace="theirs")
    report = talk.ask(messages, tools=[{"name": "b"}], namespace="ours")
    assert (report.position, report.reason, report.cached_text) == (0, "never_seen", "")
    talk = Talk(quotes=False)
    talk.ask(messages)
    report = talk.ask([SYSTEM, turn("user", "Bye")])
    assert (report.cached_text, report.prompt_text[:3]) == ("", "Bye")


def test_without_being_asked_nothing_is_quoted() -> None:
    reports = CacheReports(quotes=True)
    prompt = prompt_of(["hello"])
    report = reports.report(
        Submit("r", Sampling(max_tokens=1, seed=0), prompt=["hello"]), prompt, CacheMiss(1, "never_seen", [97])
    )
    assert (report.position, report.character, report.cached_text, report.prompt_text) == (1, None, "", "")


def test_the_guide_explains_every_reason() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "caching.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \| \w", guide, re.MULTILINE)) == sorted(get_args(MissReason))


def test_the_memory_of_conversations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    for i in range(cache_report.MAX_CHATS + 5):
        talk.ask([turn("user", f"{i} hello")])
    assert len(talk.reports._recent) == cache_report.MAX_CHATS
    monkeypatch.setattr(cache_report, "MAX_TOKENS", 100)
    for i in range(5):
        talk.ask([turn("user", f"{i} hello")])
    assert sum(len(each.ids) for each in talk.reports._recent.values()) == talk.reports._tokens <= 100
