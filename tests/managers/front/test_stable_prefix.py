"""`--stable-prefix`: what counts as a line that changes, where it goes, and that nothing takes long or happens in
silence."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood import Engine
from sapwood.managers.cli.options import config_of
from sapwood.managers.cli.parser import parse
from sapwood.managers.front.requests.stable_prefix import MAX_CHARACTERS, StablePrefix, text_of
from sapwood.managers.wire.answers import MovedLine
from sapwood.managers.wire.errors import ConfigError
from sapwood.managers.wire.options import EngineConfig
from sapwood.managers.wire.requests import Chat
from sapwood.managers.wire.volatile_lines import MAX_LINE, RULES, complaint_about_pattern, rule_for

ATTRIBUTION = "x-anthropic-billing-header: cc_version=2.0.1; cc_entrypoint=cli; cch=0a1b2;"
DATE = "Today's date: 2026-12-01"
USER = {"role": "user", "content": "Fix the bug."}


def applied(
    messages: list[dict[str, Any]], mode: str = "move", patterns: tuple[str, ...] = ()
) -> tuple[list[dict[str, Any]], list[MovedLine]]:
    before = [dict(each) for each in messages]
    chat, moved = StablePrefix(mode, patterns).applied(Chat(messages))
    assert messages == before, "the caller's messages were changed"
    return chat.messages, moved


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (ATTRIBUTION, "attribution"),
        ("X-Anthropic-Billing-Header: a", "attribution"),
        (DATE, "date"),
        ("- Today's date is Tuesday, 1 December 2026", "date"),
        ("The current date is 2026-12-01.", "date"),
        ("Current date: December 1, 2026", "date"),
        ("Today is 2026-12-01", "date"),
        ("**Current Date (UTC):** 2026-12-01", "date"),
        ("Current date/time: 2026-12-01 08:00", "time"),
        ("Current date and time: Tue Dec 1 08:00:01 2026", "time"),
        ("The current time is 08:00:01", "time"),
        ("current datetime: 2026-12-01T08:00:01Z", "time"),
        ("Today's date: 2026-12-01 08:00:01", "time"),
        ("Timestamp: 1733040000", "time"),
        ("Session ID: 4f2a", "session id"),
        ("conversation_id=77", "session id"),
        ("Request-ID: 9", "request id"),
        ("Working directory: /home/me/project", "working directory"),
        ("cwd: C:\\work", "working directory"),
        ("  - Primary working directory: ~/x", "working directory"),
    ],
)
def test_these_lines_change(line: str, name: str) -> None:
    found = rule_for(line)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "line",
    [
        "",
        "You are Claude Code, Anthropic's official CLI for Claude.",
        "Knowledge cutoff: 2023-10",
        "Always write the current date at the top of a letter.",
        "Today's date matters.",
        "Dates: 2026-12-01",
        "The working directory is shown by pwd.",
        "If asked, say: Today's date: 2026-12-01",
        "Session identifiers: never show them",
        "timestamps are in UTC: 2026",
        "Today's date: " + "x" * MAX_LINE + "1",
    ],
)
def test_these_lines_stay(line: str) -> None:
    assert rule_for(line) is None


def test_every_rule_has_a_line_of_its_own_above() -> None:
    marks = [mark for mark in getattr(test_these_lines_change, "pytestmark") if mark.name == "parametrize"]  # noqa: B009
    assert {name for _, name in marks[0].args[1]} == {rule.name for rule in RULES}


def test_off_changes_nothing() -> None:
    messages = [system(f"{ATTRIBUTION}\nYou code."), USER]
    assert applied(messages, "off") == (messages, [])


def test_what_changes_with_the_day_goes_to_the_end_of_its_own_message() -> None:
    messages, moved = applied([system(f"{DATE}\nYou code.\nBe kind."), USER])
    assert messages == [system(f"You code.\nBe kind.\n{DATE}"), USER]
    assert moved == [MovedLine("date", 0, 0, DATE)]


def test_what_changes_with_each_request_goes_behind_the_last_message_of_a_user_or_tool() -> None:
    turns = [USER, {"role": "assistant", "content": "Done."}, {"role": "tool", "content": "ok"}]
    messages, moved = applied([system(f"{ATTRIBUTION}\nYou code."), *turns])
    assert messages == [system("You code."), *turns[:2], {"role": "tool", "content": f"ok\n{ATTRIBUTION}"}]
    assert moved == [MovedLine("attribution", 0, 3, ATTRIBUTION)]
    messages, _ = applied([system(f"{ATTRIBUTION}\nYou code."), USER, {"role": "assistant", "content": "So far"}])
    assert messages[1:] == [
        {**USER, "content": f"Fix the bug.\n{ATTRIBUTION}"},
        {"role": "assistant", "content": "So far"},
    ]


def test_dropped_is_dropped_and_listed() -> None:
    messages, moved = applied([system(f"{ATTRIBUTION}\nYou code.\n{DATE}\n"), USER], "drop")
    assert messages == [system("You code.\n"), USER]
    assert moved == [MovedLine("attribution", 0, None, ATTRIBUTION), MovedLine("date", 0, None, DATE)]
    messages, moved = applied([{"role": "developer", "content": DATE}, USER], "drop")
    assert (messages[0], len(moved)) == ({"role": "developer", "content": ""}, 1)


def test_parts_are_looked_into_and_one_that_is_left_empty_goes() -> None:
    parts = [{"type": "text", "text": ATTRIBUTION}, {"type": "text", "text": "You code.", "cache_control": {}}]
    messages, moved = applied([system(parts), {"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    assert messages[0] == system(parts[1:])
    assert text_of(messages[1]["content"]) == f"Hi\n{ATTRIBUTION}"
    assert [each.to for each in moved] == [1]


def test_what_stands_behind_everything_already_is_left_there() -> None:
    for content in (f"You code.\n{DATE}", f"You code.\n\n{DATE}\n", "You code."):
        messages = [system(content), USER]
        assert applied(messages) == (messages, [])
    messages, moved = applied([system(f"{ATTRIBUTION}\nYou code.\n{DATE}"), USER])
    assert messages[0] == system(f"You code.\n{DATE}")
    assert [each.rule for each in moved] == ["attribution"]


def test_a_message_of_nothing_else_and_one_without_anyone_to_follow() -> None:
    messages = [system(DATE), USER]
    assert applied(messages) == (messages, [])
    messages, moved = applied([system(f"{ATTRIBUTION}\nYou code.")])
    assert messages == [system(f"You code.\n{ATTRIBUTION}")]
    assert moved == [MovedLine("attribution", 0, 0, ATTRIBUTION)]


def test_users_texts_are_never_changed_but_for_what_is_put_behind_them() -> None:
    messages = [system("You code."), {"role": "user", "content": f"{DATE}\nHello"}]
    assert applied(messages, "drop") == (messages, [])


def test_a_pattern_of_the_operators() -> None:
    messages, moved = applied([system("build 17\nYou code."), USER], "move", (r"build \d+",))
    assert messages == [system("You code."), {**USER, "content": "Fix the bug.\nbuild 17"}]
    assert moved == [MovedLine("pattern", 0, 1, "build 17")]


lines = st.one_of(
    st.sampled_from([ATTRIBUTION, DATE, "Request ID: 7", "", "You code.", "  indented", "a\tb"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20),
)
contents = st.one_of(
    st.none(),
    st.lists(lines, max_size=6).map("\n".join),
    st.lists(st.lists(lines, max_size=4).map(lambda each: {"type": "text", "text": "\n".join(each)}), max_size=3),
)
roles = st.sampled_from(["system", "developer", "user", "tool", "assistant"])
messages_ = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "tool", "assistant"]), "content": contents}
    ),
    min_size=1,
    max_size=5,
)


@given(messages_, st.sampled_from(["move", "drop"]))
def test_no_line_is_lost_or_moved_in_silence(messages: list[dict[str, Any]], mode: str) -> None:
    before, (after, moved) = sorted(_lines_of(messages)), applied(messages, mode)
    gone = [each.line for each in moved if each.to is None]
    shown = _lines_of(after)
    assert sorted([*shown, *gone]) == before
    assert (mode == "drop") == bool(gone) or not moved
    assert len(after) == len(messages)
    if not moved:
        assert after == messages
    for was, now in zip(messages, after):
        if was["role"] == "assistant":
            assert now == was
    again, more = applied(after, mode)
    if mode == "drop":
        assert (again, more) == (after, []), "what is left has nothing more to drop"


def _lines_of(messages: list[dict[str, Any]]) -> list[str]:
    """All that is not blank."""
    contents = [each["content"] for each in messages]
    texts = [part["text"] for each in contents if isinstance(each, list) for part in each]
    texts += [each for each in contents if isinstance(each, str)]
    return [line.strip() for text in texts for line in text.split("\n") if line.strip()]


def test_only_so_much_is_looked_at_and_no_line_is_cut() -> None:
    long = "\n".join(["You code."] * (MAX_CHARACTERS // 10 - 1))
    messages, moved = applied([system(f"{long}\n{DATE}\nmore"), USER], "drop")
    assert moved == []
    assert messages == [system(f"{long}\n{DATE}\nmore"), USER]


@pytest.mark.parametrize(
    "line",
    [
        "current date " * 18,
        "Current date (" + "(" * 200,
        "today's date: " + "a" * 240,
        "-" * 255,
        " " * 255,
        "x-anthropic-" + "-" * 200,
        "working directory: " + "=" * 200,
        "Current date: " + ("1:" * 120),
        "the current local now date and time " * 7,
    ],
)
def test_hostile_lines_take_no_time(line: str) -> None:
    text = "\n".join([line] * (MAX_CHARACTERS // len(line)))
    began = time.perf_counter()
    applied([system(text), USER], "drop", (r"[a-z ]+x[a-z ]+y",))
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("(a+)+b", "repeats a group"),
        ("(?:a|a)*b", "repeats a group"),
        ("(?:a|a){9}b", "repeats a group"),
        (r"(a)\1", "has"),
        ("(?=a)b", "has"),
        ("(?P<n>a)", "has"),
        (".*.*.*x", "repeats (*, +, {})"),
        ("a?" * 9 + "a", "question marks"),
        ("[", "no regular expression"),
        ("", "characters"),
        ("a" * 257, "characters"),
        (".*", "matches an empty line"),
        ("a|", "matches an empty line"),
    ],
)
def test_a_pattern_that_could_take_long_is_refused(pattern: str, complaint: str) -> None:
    assert complaint in complaint_about_pattern(pattern)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        EngineConfig(stable_prefix="move", stable_prefix_pattern=(pattern,))


@pytest.mark.parametrize(
    "pattern", [r"build \d+", r"(?i)rev: [0-9a-f]{7,40}", r"[*+?]x", r"\(a\)\*", "(?:a|b)c", "a(b)?c"]
)
def test_plain_patterns_are_taken(pattern: str) -> None:
    assert complaint_about_pattern(pattern) == ""


def test_the_options_on_the_command_line() -> None:
    given = ["serve", "--stable-prefix", "drop", "--stable-prefix-pattern", "a b", "--stable-prefix-pattern", r"c\d"]
    config = config_of(parse(given))
    assert (config.stable_prefix, config.stable_prefix_pattern) == ("drop", ("a b", r"c\d"))
    assert config_of(parse(["serve"])).stable_prefix_pattern == ()
    with pytest.raises(ConfigError, match=r"^--stable-prefix-pattern needs --stable-prefix to be move or drop"):
        config_of(parse(["serve", "--stable-prefix-pattern", "a b"]))
    with pytest.raises(ConfigError, match=r"^--stable-prefix-pattern '\(a\+\)\+' repeats a group"):
        config_of(parse(["serve", "--stable-prefix", "move", "--stable-prefix-pattern", "(a+)+"]))
    with pytest.raises(ConfigError, match="16 times at most"):
        EngineConfig(stable_prefix="move", stable_prefix_pattern=("a",) * 17)


def test_an_engine_sees_conversations_so_whichever_way_they_come(
    module_fakes: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    messages = [system(f"{ATTRIBUTION}\nYou code."), USER]
    with Engine(tiny_model, stable_prefix="drop") as engine:
        rendering = engine.render(messages)
        assert ATTRIBUTION not in rendering.text
        assert "You code." in rendering.text
        whole = engine.generate(messages=messages, max_tokens=1)
        assert whole.prompt_tokens == engine.generate([rendering.prompt], max_tokens=1)[0].prompt_tokens
        assert whole.prompt_tokens == engine.generate(messages=[system("You code."), USER], max_tokens=1).prompt_tokens
        turns = [USER, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
        first = engine.render([system("x-anthropic-billing-header: cch=1\nYou code."), *turns[:1]])
        second = engine.render([system("x-anthropic-billing-header: cch=2\nYou code."), *turns])
        assert second.text.startswith(first.text), "the second turn shares all of the first one"
