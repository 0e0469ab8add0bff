"""What every child process does: find its link, report to the front, and end when told to or when its parent is gone.

A child must never outlive its parent, and must never end without a word: a failed start is one sentence to the front,
anything unexpected is a traceback in the log and exit code 1.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import zmq

from ...runtime.errors import RankLost, SapwoodError
from ...runtime.records import Message
from .lifecycle import Hello, ModelInfo, Ready, ReasoningInfo, Shutdown, StartFailed
from .logs import logger, start_logging
from .sockets import ENVIRONMENT, Inbox, Link, Outbox

PARENT_POLL_SECONDS = 0.5
RANK_LOST = 3  # exit code
LAST_WORDS_SECONDS = 1.0  # how long a child that ends may take over its last messages

C = TypeVar("C", bound=Message)


class Child:
    """A child's ties to the rest: its link, its outbox to the front, its log."""

    def __init__(self, role: str, link: Link) -> None:
        self.role = role
        self.link = link
        self.front = Outbox(link, "front")
        self.log = logger(role)
        self.is_ready = False

    def hello(self) -> None:
        """Tell the front that the inbox is bound. Bind it first."""
        self.front.send(Hello(self.role, os.getpid()))

    def configuration(self, inbox: Inbox[Any], kind: type[C]) -> C:
        """Say hello and wait for the message that configures this child. Ends the process on Shutdown."""
        self.hello()
        while True:
            message = inbox.receive()
            if isinstance(message, Shutdown):
                raise SystemExit(0)
            if isinstance(message, kind):
                return message

    def ready(
        self,
        timings: dict[str, float],
        model: ModelInfo | None = None,
        vocab_size: int = 0,
        reasoning: ReasoningInfo = ReasoningInfo(),  # noqa: B008 (it is frozen)
    ) -> None:
        """Tell the front that work can begin, and what the start was spent on (seconds)."""
        self.is_ready = True
        self.front.send(Ready(self.role, timings, model, vocab_size, reasoning))

    def fail(self, sentence: str) -> None:
        """Tell the front why this child cannot start."""
        self.front.send(StartFailed(self.role, sentence))


def run_child(role: str, body: Callable[[Child], None]) -> NoReturn:
    """Run a child process's body and exit: 0 when it returns or on SIGTERM, 1 when it cannot start or fails, RANK_LOST
    when it cannot go on since another worker is gone.

    The process ends at once when its parent does, however that happens.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if ENVIRONMENT not in os.environ:
        sys.exit(f"The {role} is started by Sapwood itself: use `sapwood serve`, or sapwood.Engine.")
    link = Link.from_environment()
    _watch_parent(link)
    start_logging(role, "info")
    child = Child(role, link)
    _exit(child, _run(child, body))


def _run(child: Child, body: Callable[[Child], None]) -> int:
    """The exit code."""
    try:
        body(child)
    except SystemExit as request:
        return request.code if isinstance(request.code, int) else 0
    except RankLost as error:
        child.log.error("%s", error)
        return RANK_LOST  # what to tell the user is known where the other one ended
    except SapwoodError as error:
        if child.is_ready:
            child.log.exception("stopped by an error")
        else:
            child.fail(str(error))
        return 1
    except BaseException as error:
        child.log.exception("stopped by an unexpected error")
        if not child.is_ready:
            child.fail(f"The {child.role} could not start: {type(error).__name__}: {error}")
        return 1
    return 0


def _exit(child: Child, code: int) -> NoReturn:
    """Let the last messages leave, then end without the teardown of heavy libraries."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    limit = threading.Timer(LAST_WORDS_SECONDS, os._exit, [code])
    limit.daemon = True
    limit.start()
    child.front.close()
    zmq.Context.instance().destroy(linger=500)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _watch_parent(link: Link) -> None:
    """End this process as soon as the parent is gone, and clear away the socket files that it could not.

    The end of stdin (a pipe whose other end only the parent has) tells at once; where a fork of the parent holds a
    copy of that end, the changed parent id tells.
    """
    parent = os.getppid()

    def end() -> None:
        link.remove()
        os._exit(1)

    def watch_stdin() -> None:
        while os.read(0, 1):
            pass
        end()

    def watch_parent_id() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        end()

    for watch in (watch_stdin, watch_parent_id):
        threading.Thread(target=watch, name=watch.__name__, daemon=True).start()
