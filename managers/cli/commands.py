"""Runs the parsed command. Each command's code is imported only when it is the one that runs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

from ...runtime.errors import SapwoodError
from ..wire.errors import ConfigError, InvalidRequest

INTERRUPTED = 130


def run_command(arguments: argparse.Namespace, began: float) -> int:
    """The exit code: 0 done, 1 failed, 2 wrong options. `began`: when the process's own work began (perf_counter)."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may write what the terminal's encoding does not have
    try:
        return _run(arguments, began)
    except (ConfigError, InvalidRequest) as error:
        print(f"sapwood {arguments.command}: {error}", file=sys.stderr)
        return 2
    except SapwoodError as error:
        print(f"sapwood {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # which says that the reader of our output has gone, as `head` does
            print(f"sapwood {arguments.command}: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: argparse.Namespace, began: float) -> int:
    match arguments.command:
        case "serve":
            with _stoppable():
                from .serve import serve

                return serve(arguments, began)
        case "chat":
            from .chat import chat

            return chat(arguments)
        case "generate":
            from .generate import generate

            return generate(arguments)
        case "batch":
            from .answer_batch import batch

            return batch(arguments)
        case "pull":
            from .pull import pull

            return pull(arguments)
        case "bench":
            from .bench import bench

            return bench(arguments)
        case "grammar":
            from .grammar import grammar

            return grammar(arguments)
        case other:
            raise ValueError(f"no code for the command {other!r}")


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM and SIGINT end the process with code 0, as the server does that later takes them over.

    Until then there is nothing to clear away.
    """
    stops = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: os._exit(0)) for number in stops]
    try:
        yield
    finally:
        for number, handler in zip(stops, before, strict=True):
            signal.signal(number, handler)
