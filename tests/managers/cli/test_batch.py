"""`sapwood batch`: every line answered once, in order, through kills; errors where OpenAI has them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sapwood.managers.cli.batch_files import BatchError, BatchOutput, read_batch
from sapwood.managers.cli.commands import run_command
from sapwood.managers.cli.parser import parse


def line(name: str, body: Any = None, url: str = "/v1/completions", **more: Any) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body or {"prompt": name}, **more})


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


class FakeServer:
    """Answers `{"said": prompt}` when `gate` lets it; the prompt can ask for a delay or a status."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = self.most_open = 0
        self.busy = 0  # requests that are told to come again
        self.loop = asyncio.new_event_loop()
        self.url = ""
        started = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self.thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        async def start() -> None:
            app = web.Application()
            app.add_routes([web.post("/v1/{name:.+}", self._answer)])
            runner = web.AppRunner(app, handler_cancellation=True)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            started.set()

        self.loop.run_until_complete(start())
        self.loop.run_forever()

    async def _answer(self, request: web.Request) -> web.Response:
        prompt = (await request.json())["prompt"]
        if self.busy:
            self.busy -= 1
            return web.json_response({"error": {"code": "overloaded"}}, status=503)
        self.asked.append(prompt)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            kind, _, value = prompt.partition(":")
            await asyncio.sleep(float(value) if kind == "wait" else 0)
        finally:
            self.open -= 1
        if kind == "dead":
            return web.json_response({"error": {"code": "engine_dead", "message": "Gone."}}, status=500)
        status = int(value) if kind == "status" else 200
        text = "<html>" if kind == "html" else json.dumps({"said": prompt})
        return web.Response(text=text, status=status, headers={"X-Request-Id": f"id-{prompt}"})

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


@pytest.fixture(scope="module")
def module_server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def server(module_server: FakeServer) -> FakeServer:
    module_server.asked.clear()
    module_server.most_open = module_server.busy = 0
    return module_server


def run(source: Path, server: FakeServer, *more: str) -> int:
    return run_command(parse(["batch", str(source), "--url", server.url, *more]), 0.0)


def test_answers_come_in_the_order_of_the_lines_whatever_takes_long(
    tmp_path: Path, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    names = ["wait:0.3", "b", "wait:0.1", "ü 🚲", "wait:0.2", "f"]
    source.write_text("\n".join(map(line, names)) + "\n\n")
    assert run(source, server) == 0
    out = tmp_path / "in.out.jsonl"
    found = answers(out)
    assert [each["custom_id"] for each in found] == names
    assert [each["response"]["body"] for each in found] == [{"said": name} for name in names]
    assert found[1]["response"] == {"status_code": 200, "request_id": "id-b", "body": {"said": "b"}}
    assert {tuple(each) for each in found} == {("id", "custom_id", "response", "error")}
    assert {each["error"] for each in found} == {None}
    assert len({each["id"] for each in found}) == 6
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "in.out.jsonl"]
    shown = capsys.readouterr().err
    assert "100%" in shown
    assert f"6 lines in {out}" in shown
    before = out.read_bytes()
    assert run(source, server) == 0, "there is nothing left to do"
    assert (out.read_bytes(), len(server.asked)) == (before, 6)


def test_so_many_at_once_and_no_more(tmp_path: Path, server: FakeServer) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(line(f"wait:0.0{i}") for i in range(10, 30)))
    assert run(source, server, "--concurrency", "3", "-o", str(tmp_path / "o")) == 0
    assert server.most_open == 3
    assert [each["custom_id"] for each in answers(tmp_path / "o")] == [f"wait:0.0{i}" for i in range(10, 30)]


def test_what_is_refused_or_cannot_be_sent_is_an_error_of_its_line_alone(tmp_path: Path, server: FakeServer) -> None:
    source = tmp_path / "in.jsonl"
    lines = [
        line("good"),
        line("status:400"),
        "{broken",
        "[1]",
        line("good"),
        line("e", url="/v1/embeddings"),
        line("f", method="GET"),
        json.dumps({"custom_id": "g", "method": "POST", "url": "/v1/completions"}),
        line("h", {"prompt": "h", "stream": True}),
        line("i", more=1),
        line("j", {"prompt": "html"}),
        line("\ud800"),
        line("last"),
    ]
    source.write_text("\n".join(lines))
    assert run(source, server) == 1
    found = answers(tmp_path / "in.out.jsonl")
    assert len(found) == len(lines)
    assert found[1]["response"] == {"status_code": 400, "request_id": "id-status:400", "body": {"said": "status:400"}}
    codes = [each["error"] and each["error"]["code"] for each in found]
    assert codes == [
        None,
        None,
        "invalid_json_line",
        "missing_required_parameter",
        "duplicate_custom_id",
        "invalid_url",
        "invalid_method",
        "missing_required_parameter",
        "invalid_request",
        "unknown_parameter",
        None,
        None,
        None,
    ]
    assert [each["custom_id"] for each in found[2:6]] == [None, None, "good", "e"]
    assert "Line 3" in found[2]["error"]["message"]
    assert found[10]["response"]["body"]["error"]["message"] == "The server answered 200 with what is no JSON."
    assert (found[11]["custom_id"], found[12]["response"]["status_code"]) == ("\ud800", 200)
    assert sorted(server.asked) == sorted(["good", "status:400", "html", "\ud800", "last"])


def test_a_busy_server_is_asked_again(tmp_path: Path, server: FakeServer) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join([line("a"), line("b")]))
    server.busy = 3
    assert run(source, server) == 0
    assert sorted(server.asked) == ["a", "b"]


def test_a_dead_engine_is_no_answer(tmp_path: Path, server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "in.out.jsonl"
    source.write_text("\n".join([line("a"), line("b", {"prompt": "dead"}), line("c")]))
    assert run(source, server, "--concurrency", "1") == 1
    assert "Gone. What is done is kept; start it again to go on." in capsys.readouterr().err
    assert [each["custom_id"] for each in answers(out)] == ["a"]


def test_killed_in_the_middle_and_started_again_nothing_is_asked_twice_or_lost(
    tmp_path: Path, server: FakeServer
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    names = ["wait:0.05", "slow", *(f"wait:0.{i}" for i in range(10, 99))]
    source.write_text("\n".join(line(name, {"prompt": "wait:60"} if name == "slow" else None) for name in names))
    command = [sys.executable, "-m", "sapwood", "batch", str(source), "-o", str(out), "--url", server.url]
    with subprocess.Popen([*command, "--concurrency", "4"], stderr=subprocess.DEVNULL) as process:
        early = tmp_path / "out.jsonl.early"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (not early.exists() or early.read_bytes().count(b"\n") < 8):
            time.sleep(0.02)
        process.kill()
        process.wait(10)
    kept = {each["custom_id"] for path in (out, early) for each in answers(path)}
    assert len(kept) > 8
    assert "slow" not in kept
    assert [each["custom_id"] for each in answers(out)] == ["wait:0.05"]
    with out.open("ab") as torn:
        torn.write(b'{"id":"batch_req_12')
    with early.open("ab") as torn:
        torn.write(b'{"id"')
    time.sleep(0.2)  # what was under way at the kill
    server.asked.clear()
    source.write_text(source.read_text().replace("wait:60", "wait:00"))  # another line: it is not the one of before
    assert run(source, server, "-o", str(out), "--concurrency", "40") == 0
    found = answers(out)
    assert [each["custom_id"] for each in found] == names
    assert len(server.asked) == len(names) - len(kept)
    assert not kept & set(server.asked)
    assert not early.exists()


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, server: FakeServer) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "in.out.jsonl"
    source.write_text("\n".join([line("a"), line("wait:60")]))
    command = [sys.executable, "-m", "sapwood", "batch", str(source), "--url", server.url]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and len(server.asked) < 2:
            time.sleep(0.02)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    assert [each["custom_id"] for each in answers(out)] == ["a"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"notes\nof mine\n", "is no answer of a batch"),
        (b"notes", "is no answer of a batch"),
        (b'{"id":"other"}\n', "does not answer that line of the input"),
    ],
)
def test_a_file_of_somebody_elses_is_left_as_it_is(tmp_path: Path, content: bytes, sentence: str) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text(line("a"))
    out.write_bytes(content)
    with pytest.raises(BatchError, match=sentence):
        BatchOutput(out, read_batch(source))
    assert out.read_bytes() == content


def test_an_answer_to_a_line_that_is_another_one_now_is_not_taken(tmp_path: Path, server: FakeServer) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(line("a"))
    assert run(source, server) == 0
    source.write_text(line("a", {"prompt": "other"}))
    assert run(source, server) == 1
    assert server.asked == ["a"]


def test_an_output_is_one_batchs_at_a_time(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(line("a"))
    first = BatchOutput(tmp_path / "out", read_batch(source))
    with pytest.raises(BatchError, match="in use by another batch"):
        BatchOutput(tmp_path / "out", read_batch(source))
    first.close()
    BatchOutput(tmp_path / "out", read_batch(source)).close()


@pytest.mark.parametrize(
    ("arguments", "sentence", "code"),
    [
        (["missing.jsonl"], "Cannot read missing.jsonl: No such file", 1),
        (["in.jsonl", "--url", "http://127.0.0.1:9", "--threads", "2"], "no meaning with --url", 2),
        (["in.jsonl", "--concurrency", "0"], "--concurrency must be between 1 and 1024, not 0", 2),
        (["in.jsonl", "-o", "in.jsonl"], "The output must not be the file of the requests", 2),
        (["empty.jsonl"], "empty.jsonl holds no requests", 1),
        (["in.jsonl", "-o", "no/such/folder"], "Cannot write no/such/folder", 1),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text(line("a"))
    Path("empty.jsonl").write_text("\n \n")
    assert run_command(parse(["batch", *arguments]), 0.0) == code
    assert sentence in capsys.readouterr().err
    assert Path("in.jsonl").read_text() == line("a")


def test_nobody_there_is_said_and_nothing_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sapwood.managers.cli.answer_batch._RETRY_SECONDS", (0.01, 0.01))
    source = tmp_path / "in.jsonl"
    source.write_text(line("a"))
    assert run_command(parse(["batch", str(source), "--url", "http://127.0.0.1:9/v1/"]), 0.0) == 1
    assert "Nothing answers at http://127.0.0.1:9: " in capsys.readouterr().err


def test_a_model_of_its_own_answers_and_is_gone_afterwards(tmp_path: Path, smollm2_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0, "model": "smollm2"}
    source.write_text(
        "\n".join([line("a", chat, "/v1/chat/completions"), line("b", {"prompt": "One", "max_tokens": 3})])
    )
    command = [sys.executable, "-m", "sapwood", "batch", str(source), "--max-context", "256", "--kv-tokens", "512"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, second = answers(tmp_path / "in.out.jsonl")
    assert first["response"]["body"]["choices"][0]["message"]["content"]
    assert first["response"]["request_id"] == first["response"]["body"]["id"]
    assert second["response"]["body"]["usage"]["completion_tokens"] == 3
