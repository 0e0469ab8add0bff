"""The files of a batch: OpenAI's requests by lines, and their answers in the same order, through any interruption.

Answers whose turn it is go into the output, those that are early into a file beside it, each in one write as it comes.
What is written is never written again, but for a last line that was torn. It must never answer a line of another input.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...runtime.errors import SapwoodError

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


class BatchError(SapwoodError):
    """The files of a batch cannot be used; the message says which and why."""


@dataclass(frozen=True)
class BatchLine:
    """One request. id: of its answer; it depends on the line and its place. body: to be sent to `url`; None where
    `error` says why it cannot be."""

    id: str
    custom_id: str | None
    url: str = ""
    body: dict[str, Any] | None = None
    error: tuple[str, str] = ("", "")  # OpenAI's code, and a sentence

    def answered(self, status: int, request_id: str, body: Any) -> bytes:
        """The output line for what a server has answered."""
        response = {"status_code": status, "request_id": request_id, "body": body}
        return self._output(response, None)

    def refused(self) -> bytes:
        """The output line of a request that cannot be sent."""
        code, message = self.error
        return self._output(None, {"code": code, "message": message})

    def _output(self, response: Any, error: Any) -> bytes:
        line = {"id": self.id, "custom_id": self.custom_id, "response": response, "error": error}
        try:
            return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        except UnicodeEncodeError:  # a lone surrogate, which only an escape can hold
            return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def read_batch(path: Path) -> list[BatchLine]:
    """The requests of a file; blank lines are none. Raises BatchError where the file cannot be read or holds none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BatchError(f"Cannot read {path}: {error.strerror}.") from None
    seen: set[str] = set()
    lines = [_parsed(number, line, seen) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if not lines:
        raise BatchError(f"{path} holds no requests.")
    return lines


def _parsed(number: int, line: bytes, seen: set[str]) -> BatchLine:
    made = "batch_req_" + hashlib.sha256(b"%d:%b" % (number, line.strip())).hexdigest()[:24]
    try:
        fields = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except (ValueError, RecursionError):
        return BatchLine(made, None, error=("invalid_json_line", f"Line {number} is not valid JSON."))
    custom_id = fields.get("custom_id") if isinstance(fields, dict) else None
    if not isinstance(custom_id, str) or not custom_id:
        text = f"Line {number} needs a custom_id, a text that no other line has."
        return BatchLine(made, None, error=("missing_required_parameter", text))
    if custom_id in seen:
        text = f"An earlier line has the custom_id {custom_id!r}."
        return BatchLine(made, custom_id, error=("duplicate_custom_id", text))
    seen.add(custom_id)
    error = _complaint(fields)
    if error is not None:
        return BatchLine(made, custom_id, error=error)
    return BatchLine(made, custom_id, fields["url"], fields["body"])


def _complaint(fields: dict[str, Any]) -> tuple[str, str] | None:
    unknown = sorted(fields.keys() - {"custom_id", "method", "url", "body"})
    body = fields.get("body")
    if unknown:
        return "unknown_parameter", f"A line has custom_id, method, url and body; not {unknown[0]!r}."
    if fields.get("method") != "POST":
        return "invalid_method", f"method must be 'POST', not {fields.get('method')!r}."
    if fields.get("url") not in URLS:
        return "invalid_url", f"url must be one of {', '.join(URLS)}; not {fields.get('url')!r}."
    if not isinstance(body, dict):
        return "missing_required_parameter", "body must be the JSON object that the endpoint takes."
    if body.get("stream"):
        return "invalid_request", "body.stream: an answer of a batch cannot be streamed."
    if body.get("background"):
        return "invalid_request", "body.background: a batch waits for its answers."
    return None


class BatchOutput:
    """The answers so far. Opening it takes up what an earlier run has left."""

    def __init__(self, path: Path, lines: list[BatchLine]) -> None:
        """Raises BatchError where the output is of another input, in use, or cannot be written."""
        self._early_path = path.with_name(path.name + ".early")
        self._ids = [line.id for line in lines]
        self._early: dict[str, tuple[int, int]] = {}  # where in the file beside it, from and to
        self.failed = 0
        try:
            self._file = _opened(path)
            self._early_file = _opened(self._early_path)
        except OSError as error:
            raise BatchError(f"Cannot write {path}: {error.strerror}.") from None
        self._next = 0
        for _, _, output in _whole_lines(self._file, path):
            if self._next >= len(lines) or output.get("id") != self._ids[self._next]:
                text = f"Line {self._next + 1} of {path} does not answer that line of the input"
                raise BatchError(f"{text}; name another output with -o, or remove it.")
            self._take(output)
        known = {*self._ids}
        for start, stop, output in _whole_lines(self._early_file, self._early_path):
            if output.get("id") in known:
                self._early[output["id"]] = start, stop
        self._advance()

    @property
    def done(self) -> int:
        """How many lines have an answer."""
        return self._next + len(self._early)

    def has(self, place: int) -> bool:
        """Whether the line at this place among the requests has an answer."""
        return place < self._next or self._ids[place] in self._early

    def add(self, place: int, line: bytes) -> None:
        """Keep the answer of the line at this place."""
        if place != self._next:
            start = self._early_file.seek(0, os.SEEK_END)
            _write(self._early_file, line)
            self._early[self._ids[place]] = start, start + len(line)
            return
        _write(self._file, line)
        self._take(json.loads(line))
        self._advance()

    def close(self) -> None:
        """Leave the files as they are; the one beside the output goes once nothing is missing."""
        if self._next == len(self._ids):
            self._early_path.unlink(missing_ok=True)
        self._file.close()
        self._early_file.close()

    def _advance(self) -> None:
        """Early answers whose turn has come go into the output."""
        while self._next < len(self._ids) and (place := self._early.pop(self._ids[self._next], None)) is not None:
            self._early_file.seek(place[0])
            line = self._early_file.read(place[1] - place[0])
            _write(self._file, line)
            self._take(json.loads(line))

    def _take(self, output: dict[str, Any]) -> None:
        response = output.get("response")
        self._next += 1
        self.failed += response is None or response.get("status_code") != 200


def _opened(path: Path) -> BinaryIO:
    """A file to read and to go on with, unbuffered, which no other batch uses."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise BatchError(f"{path} is in use by another batch.") from None
    return file


def _whole_lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The lines of a file (from, to, content). A last one that is torn is cut off; anything else is not of ours."""
    file.seek(0)
    start = 0
    for number, line in enumerate(file.read().splitlines(keepends=True), 1):
        if not line.endswith(b"\n") and line.startswith(b"{"):
            file.truncate(start)
            return
        try:
            output = json.loads(line)
        except ValueError:
            output = None
        if not isinstance(output, dict):
            raise BatchError(f"Line {number} of {path} is no answer of a batch; name another output with -o.")
        yield start, start + len(line), output
        start += len(line)


def _write(file: BinaryIO, line: bytes) -> None:
    if file.write(line) != len(line):
        raise BatchError("The disk is full. What is done is kept; start it again to go on.")
