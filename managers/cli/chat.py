"""`sapwood chat`: a conversation in the terminal. What was said before is cached; only the new turn is computed."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..front.requests.request_fields import GenerateRequest
from ..wire.errors import InvalidRequest, Overloaded, RequestFailed
from .options import config_of, sampling_of
from .session import Session, check_sampling, session

_GREETING = "Type a message. /reset starts over, /help shows this, /quit (or Ctrl-D) ends, Ctrl-C stops a reply."


def chat(arguments: argparse.Namespace) -> int:
    """Read turns from the terminal until its end."""
    config, sampling = config_of(arguments), sampling_of(arguments)
    check_sampling(sampling)
    print(f"Loading {config.model} ...", file=sys.stderr, flush=True)
    with session(config) as engine:
        print(_GREETING, file=sys.stderr, flush=True)
        _converse(engine, arguments.system, sampling)
    return 0


def _converse(engine: Session, system: str | None, sampling: dict[str, Any]) -> None:
    opening = [{"role": "system", "content": system}] if system else []
    messages = list(opening)
    typed = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if typed else "").strip()
        except (EOFError, KeyboardInterrupt):
            if typed:
                print()
            return
        if line == "/quit":
            return
        if line == "/reset":
            messages = list(opening)
            print("The conversation starts over.", file=sys.stderr)
        elif line == "/help":
            print(_GREETING, file=sys.stderr)
        elif line.startswith("/"):
            print(f"Unknown command {line.split()[0]}; there are /reset, /help and /quit.", file=sys.stderr)
        elif line:
            turn = {"role": "user", "content": line}
            reply = _reply(engine, [*messages, turn], sampling)
            if reply is not None:
                messages += [turn, {"role": "assistant", "content": reply}]


def _reply(engine: Session, messages: list[dict[str, Any]], sampling: dict[str, Any]) -> str | None:
    """Print the reply and its counts; None where there is none, and the turn then never happened."""
    try:
        text, last = engine.print_completion(GenerateRequest(messages=messages, **sampling))
    except KeyboardInterrupt:
        print("\n[stopped; this turn is forgotten]", file=sys.stderr)
        return None
    except (InvalidRequest, Overloaded, RequestFailed) as error:
        print(f"\n{error}", file=sys.stderr)
        return None
    counts = f"{last.prompt_tokens} prompt tokens, {last.cached_tokens} cached, {last.completion_tokens} generated"
    cut = "; cut at its limit" if last.finish is not None and last.finish.reason == "length" else ""
    print(f"\n[{counts}{cut}]", file=sys.stderr, flush=True)
    return text
