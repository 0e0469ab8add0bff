"""`generate` and `chat` around an engine that answers from a script, and `pull`."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from sapwood.__main__ import main
from sapwood.managers.cli import chat, generate
from sapwood.managers.wire.answers import Finish, TextChunk
from sapwood.managers.wire.errors import RequestFailed


class FakeSession:
    """Notes what it is asked, and answers "reply 1", "reply 2", …; a list item that is an exception is raised."""

    def __init__(self) -> None:
        self.requests = []
        self.trouble: dict[int, BaseException] = {}
        self.finish = Finish("stop")

    def print_completion(self, request):
        self.requests.append(request)
        number = len(self.requests)
        if number in self.trouble:
            raise self.trouble[number]
        print(f"reply {number}", end="")
        return f"reply {number}", TextChunk("r", 0, "", [], 12, 9, 3, [], finish=self.finish)


@pytest.fixture
def engine(monkeypatch) -> FakeSession:
    fake = FakeSession()

    @contextmanager
    def session(_config):
        yield fake

    monkeypatch.setattr(chat, "session", session)
    monkeypatch.setattr(generate, "session", session)
    return fake


def type_lines(monkeypatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_generate_takes_its_prompt_from_the_command_line(engine, capsys):
    assert main(["generate", "Once", "--max-tokens", "4"]) == 0
    assert (engine.requests[0].prompt, engine.requests[0].max_tokens) == ("Once", 4)
    assert capsys.readouterr().out == "reply 1\n"


def test_generate_reads_standard_input_where_no_prompt_is_given(engine, monkeypatch):
    type_lines(monkeypatch, "Once upon", "a time")
    assert main(["generate"]) == 0
    assert engine.requests[0].prompt == "Once upon\na time\n"


@pytest.mark.parametrize("command", ["generate x", "chat"])
def test_sampling_out_of_range_is_refused_before_a_model_is_loaded(engine, capsys, command):
    assert main([*command.split(), "--temperature=-1"]) == 2
    assert "temperature" in capsys.readouterr().err
    assert not engine.requests


def test_generate_refuses_an_empty_prompt(engine, capsys):
    assert main(["generate", ""]) == 2
    assert "empty" in capsys.readouterr().err
    assert not engine.requests


def test_a_failure_of_the_engine_is_one_sentence_and_code_1(engine, capsys):
    engine.trouble[1] = RequestFailed("The logits were not finite.")
    assert main(["generate", "x"]) == 1
    assert capsys.readouterr().err == "sapwood generate: The logits were not finite.\n"


def test_chat_keeps_the_conversation_and_shows_what_was_cached(engine, monkeypatch, capsys):
    type_lines(monkeypatch, "one", "", "two", "/quit", "never")
    assert main(["chat", "--system", "Be kind.", "--temperature", "0"]) == 0
    assert [request.messages for request in engine.requests] == [
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "one"}],
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "reply 1"},
            {"role": "user", "content": "two"},
        ],
    ]
    assert engine.requests[0].temperature == 0
    shown = capsys.readouterr()
    assert "reply 2" in shown.out
    assert "[12 prompt tokens, 9 cached, 3 generated]" in shown.err


def test_chat_starts_over_on_reset_and_names_unknown_commands(engine, monkeypatch, capsys):
    type_lines(monkeypatch, "one", "/reset", "/undo", "two")
    assert main(["chat"]) == 0, "the end of the input ends the chat"
    assert engine.requests[1].messages == [{"role": "user", "content": "two"}]
    assert "Unknown command /undo" in capsys.readouterr().err


def test_chat_explains_itself_on_help_and_prompts_only_a_person(engine, monkeypatch, capsys):
    type_lines(monkeypatch, "/help", "one")
    assert main(["chat"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("/reset starts over") == 2
    assert shown.out == "reply 1"


def test_chat_marks_a_reply_that_was_cut(engine, monkeypatch, capsys):
    engine.finish = Finish("length")
    type_lines(monkeypatch, "one")
    assert main(["chat"]) == 0
    assert "3 generated; cut at its limit]" in capsys.readouterr().err


def test_generate_tells_a_person_that_it_waits_for_a_prompt(engine, monkeypatch, capsys):
    type_lines(monkeypatch, "Once")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert main(["generate"]) == 0
    assert "Type the prompt" in capsys.readouterr().err


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), RequestFailed("No luck.")])
def test_chat_forgets_a_turn_that_got_no_reply(engine, monkeypatch, trouble):
    engine.trouble[1] = trouble
    type_lines(monkeypatch, "one", "two")
    assert main(["chat"]) == 0
    assert engine.requests[1].messages == [{"role": "user", "content": "two"}]


def test_pull_prints_the_path_of_the_model(smollm2_path, capsys):
    assert main(["pull", "smollm2"]) == 0
    assert capsys.readouterr().out.strip() == str(smollm2_path)
    assert main(["pull", "no-such-model"]) == 1
    assert "no-such-model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("action", "encoding", "expected"),
    [
        ("print('é🚲')", "latin-1", (0, "é?\n".encode("latin-1"), b"")),
        ("raise OSError(28, 'No space left on device')", "utf-8", (1, b"", b"[Errno 28] No space left on device\n")),
        ("raise BrokenPipeError", "utf-8", (1, b"", b"")),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(action, encoding, expected):
    """The command is replaced by something that writes."""
    code = f"""
import sys
import sapwood.managers.cli.pull as pull

def act(_arguments):
    {action}
    return 0

pull.pull = act
from sapwood.__main__ import main
sys.exit(main(["pull"]))
"""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr.removeprefix(b"sapwood pull: ")) == expected
