"""The commands of `sapwood` and which function runs each. Importing it, and `--help`, must stay cheap."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import version

from . import options

_SERVE = """\
Serve a model over HTTP, to OpenAI's clients and to anything that speaks JSON.

Prompts that start alike share their computed prefix by themselves; `usage` in every answer says how many prompt
tokens were cached. Endpoints: /v1/completions, /v1/chat/completions, /v1/models, /generate, /score, /health,
/metrics, /flush_cache, /abort.
"""
_BENCH = """\
Drive a running server through fixed, seeded workloads and print one line of JSON for each.

With --peer the same workloads run against a second server, turn by turn, and a table shows the ratios: times from
one machine mean something only beside another's that were taken in the same minutes.
"""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command and its options; ends the process with a sentence and code 2 where they make no sense."""
    parser = argparse.ArgumentParser(
        prog="sapwood",
        description="A prefix-sharing LLM serving runtime: prompts that start alike are computed once.",
        epilog="`sapwood COMMAND --help` shows a command's options. Start with: sapwood serve",
    )
    parser.add_argument("--version", action="version", version=f"sapwood {version('sapwood')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_chat(commands)
    _add_generate(commands)
    _add_pull(commands)
    _add_bench(commands)
    return parser.parse_args(arguments)


def _command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help_: str, text: str = ""):
    return commands.add_parser(
        name, help=help_, description=text or help_, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "serve", "serve a model over HTTP", _SERVE)
    group = parser.add_argument_group("network")
    group.add_argument(
        "--host", default=options.DEFAULT_HOST, help=f"address to listen on (default: {options.DEFAULT_HOST})"
    )
    group.add_argument(
        "--port",
        type=_port,
        default=options.DEFAULT_PORT,
        help=f"port to listen on; 0: any free one (default: {options.DEFAULT_PORT})",
    )
    options.add_model_options(parser, log_level="info")
    options.add_scheduling_options(parser)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"must be between 0 and 65535, not {text!r}")
    return int(text)


def _add_chat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "chat", "talk with a model in the terminal")
    parser.add_argument("--system", metavar="TEXT", help="the system message that opens the conversation")
    options.add_sampling_options(parser)
    options.add_model_options(parser, log_level="warning")


def _add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "generate", "complete one prompt and print the text as it comes")
    parser.add_argument("prompt", nargs="?", help="the prompt's text; read from standard input where it is absent")
    options.add_sampling_options(parser)
    options.add_model_options(parser, log_level="warning")


def _add_pull(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "pull", "fetch a model into the cache and print where it is")
    parser.add_argument("model", nargs="?", default="smollm2", help="alias or hub id (default: smollm2)")


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "bench", "measure a running server, alone or beside a peer", _BENCH)
    parser.add_argument("url", help="the server's address, such as http://127.0.0.1:8000")
    parser.add_argument("--peer", metavar="URL", help="another OpenAI-compatible server to measure beside it")
    parser.add_argument("--model", metavar="NAME", help="model name to send (default: the first that the server lists)")
    parser.add_argument("--only", metavar="W1,W4", help="run these workloads only")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="multiply request counts (default: 1.0)")
