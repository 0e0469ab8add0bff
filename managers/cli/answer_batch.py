"""`sapwood batch`: a file of OpenAI's batch requests, answered by a model that it starts or by a running server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from tqdm import tqdm

from ..front.front import Front
from ..server.serving import Server, address_of, bind
from ..wire.errors import ConfigError
from ..wire.logs import start_logging
from ..wire.options import EngineConfig
from .batch_files import BatchError, BatchLine, BatchOutput, read_batch
from .options import config_of

_RETRIES = 60
_RETRY_SECONDS = (0.2, 5.0)  # the first pause, and the longest
_HEADERS = {"anthropic-version": "2023-06-01"}
_MAX_CONCURRENCY = 1024
_KEPT = "What is done is kept; start it again to go on."


def batch(arguments: argparse.Namespace) -> int:
    """Answer every line of the file that has no answer yet. Returns 1 where some failed, else 0. Raises BatchError
    where it cannot go on."""
    config = config_of(arguments)
    if not 1 <= arguments.concurrency <= _MAX_CONCURRENCY:
        raise ConfigError(f"--concurrency must be between 1 and {_MAX_CONCURRENCY}, not {arguments.concurrency}.")
    if arguments.url is not None and config != EngineConfig(log_level="warning"):
        raise ConfigError("Options of the model have no meaning with --url: that server has its own.")
    source = Path(arguments.file)
    out = Path(arguments.output) if arguments.output else source.with_name(f"{source.stem}.out.jsonl")
    lines = read_batch(source)
    if out.exists() and out.samefile(source):
        raise ConfigError("The output must not be the file of the requests.")
    output = BatchOutput(out, lines)
    try:
        if output.done < len(lines):
            asyncio.run(_answer_all(lines, output, arguments.url, config, arguments.concurrency))
        failed = output.failed
    finally:
        output.close()
    told = f"{len(lines)} lines in {out}" + (f", {failed} of them failed" if failed else "")
    print(f"sapwood batch: {told}", file=sys.stderr)
    return 1 if failed else 0


async def _answer_all(
    lines: list[BatchLine], output: BatchOutput, url: str | None, config: EngineConfig, concurrency: int
) -> None:
    missing = iter([place for place in range(len(lines)) if not output.has(place)])
    async with _target(url, config) as target, _session() as session:
        with tqdm(total=len(lines), initial=output.done, desc="batch", unit="line", file=sys.stderr) as bar:

            async def work() -> None:
                for place in missing:
                    line = lines[place]
                    output.add(place, line.refused() if line.body is None else await _answer(session, target, line))
                    bar.update()

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(concurrency):
                        group.create_task(work())
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None


async def _answer(session: aiohttp.ClientSession, target: str, line: BatchLine) -> bytes:
    """The output line of a request. Waits where the server is busy. Raises BatchError where it cannot be reached."""
    pause, most = _RETRY_SECONDS
    for attempt in range(_RETRIES + 1):
        try:
            async with session.post(target + line.url, json=line.body) as response:
                text = await response.text(errors="replace")
                if response.status not in (429, 503) or attempt == _RETRIES:
                    body = _json(response.status, text)
                    return line.answered(response.status, response.headers.get("X-Request-Id", ""), body)
        except (aiohttp.ClientError, TimeoutError) as error:
            if attempt >= 3:
                text = f"Nothing answers at {target}: {error or type(error).__name__}"
                raise BatchError(f"{text}. {_KEPT}") from None
        await asyncio.sleep(pause)
        pause = min(2 * pause, most)
    raise AssertionError("the last attempt always ends the loop")


def _json(status: int, text: str) -> Any:
    """The body of an answer. Raises BatchError where the server says that it will answer nothing any more."""
    try:
        body = json.loads(text)
    except ValueError:
        message = f"The server answered {status} with what is no JSON."
        return {"error": {"message": message, "type": "server_error", "param": None, "code": None}}
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and error.get("code") == "engine_dead":
        raise BatchError(f"{error.get('message')} {_KEPT}")
    return body


def _session() -> aiohttp.ClientSession:
    key = os.environ.get("OPENAI_API_KEY")
    headers = {**_HEADERS, "Authorization": f"Bearer {key}"} if key else _HEADERS
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)


@asynccontextmanager
async def _target(url: str | None, config: EngineConfig) -> AsyncIterator[str]:
    """The address of the server to ask: that one, or one of our own that runs meanwhile."""
    if url is not None:
        yield url.rstrip("/").removesuffix("/v1")
        return
    with bind("127.0.0.1", 0) as listener:
        start_logging("server", config.log_level)
        print(f"sapwood batch: loading {config.model} ...", file=sys.stderr, flush=True)
        ready = asyncio.Event()
        server = Server(Front(config), config.model, listener, lambda _: ready.set())
        running = asyncio.create_task(server.run())
        waiting = asyncio.create_task(ready.wait())
        me = asyncio.current_task()
        assert me is not None

        def interrupt(_: object) -> None:  # it was told to stop, or its engine died
            me.cancel()

        running.add_done_callback(interrupt)
        try:
            await waiting
            yield address_of(listener)
        except asyncio.CancelledError:
            if not running.done():
                raise
            me.uncancel()
            if running.result() == 0:
                raise KeyboardInterrupt from None
            raise BatchError(f"{server.state.reason} {_KEPT}") from None
        finally:
            running.remove_done_callback(interrupt)
            waiting.cancel()
            server.stop()
            await asyncio.gather(running, return_exceptions=True)
