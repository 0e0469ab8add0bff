"""The commands of `sapwood` and which function runs each. Importing it, and `--help`, must stay cheap."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from ...constrained.near_names import probably_meant
from ...constrained.spec import Constraint
from ..wire.options import CACHE
from . import options

_SERVE = """\
Serve a model over HTTP, to OpenAI's clients and to anything that speaks JSON.

Prompts that start alike share their computed prefix by themselves; `usage` in every answer says how many prompt
tokens were cached. Endpoints, which /openapi.json describes:

  OpenAI     /v1/chat/completions, /v1/completions, /v1/models, /v1/models/{id}, /v1/responses, /v1/responses/{id},
             /v1/responses/{id}/cancel, /v1/responses/{id}/input_items, /v1/responses/input_tokens
  Anthropic  /v1/messages, /v1/messages/count_tokens
  Ollama     /api/chat, /api/generate, /api/tags, /api/show, /api/ps, /api/version; and, only to say that it is not
             supported, /api/embed, /api/embeddings, /api/pull, /api/push, /api/create, /api/copy, /api/delete
  its own    /generate, /score, /render, /apply-template, /tokenize, /detokenize, /tokenizer_info
  about it   /health, /metrics, /flush_cache, /abort, /openapi.json
"""
_BATCH = """\
Answer a file of requests in OpenAI's batch format, one JSON object on each line:

  {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

The url is /v1/chat/completions, /v1/completions, /v1/responses or /v1/messages. The output has OpenAI's lines, in the
order of the input: {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}. A request that the
server refuses has its answer as the response; one that could not be sent has an error.

It may be stopped at any time, and started again by the same command: lines that are answered are kept, and not computed
again. Without --url it starts a model and ends it again. With it, the key in $OPENAI_API_KEY is sent along, if there is
one.

The exit status is 0 where all lines were answered with success, 1 where some failed or it cannot go on, and 2 where the
options make no sense.
"""
_BENCH = """\
Drive a running server through fixed, seeded workloads and print one line of JSON for each.

With --peer the same workloads run against a second server, turn by turn, and a table shows the ratios: times from
one machine mean something only beside another's that were taken in the same minutes.
"""
_GRAMMAR = """\
Say what a constraint would do: whether it can be enforced, in full or why not, by which engine, and how long it takes
to compile. Then say of each document whether a completion under the constraint could be it. The answers are those of a
server: its limits and its defaults are these, and requests have a field for each of the options.

FILE is a JSON schema (.json), a regular expression (.regex, .txt) or a GBNF grammar (.ebnf, .gbnf); --schema, --regex
and --ebnf say so for other names (a JSON object and a text with ::= in it speak for themselves). A newline at the end
of a regular expression is not part of it.

DOCUMENT is one JSON document, or in a .jsonl file one on every line. Under a regular expression or a grammar it is a
text (without the newline at its end), and a .jsonl file has a JSON string on every line. JSON documents may be spaced
and ordered freely: they are looked at as a completion would write them, compact and with the properties in the
schema's order.

Of a document that is rejected it says why, and where in it.

The exit status is 2 where the constraint is refused, 1 where a document could not be read, and 0 otherwise, whatever
documents are rejected.
"""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command and its options; ends the process with a sentence and code 2 where they make no sense."""
    parser = argparse.ArgumentParser(
        prog="sapwood",
        description="A prefix-sharing LLM serving runtime: prompts that start alike are computed once.",
        epilog="`sapwood COMMAND --help` shows a command's options. Start with: sapwood serve",
    )
    parser.add_argument("--version", action="version", version=f"sapwood {version('sapwood')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_serve(commands)
    _add_chat(commands)
    _add_generate(commands)
    _add_batch(commands)
    _add_pull(commands)
    _add_bench(commands)
    _add_grammar(commands)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse(commands.choices.get(parsed.command, parser), unknown)
    if parsed.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    return parsed


def _refuse(parser: argparse.ArgumentParser, unknown: list[str]) -> NoReturn:
    """End with a sentence about the first argument that `parser` has no place for."""
    option = next((each.partition("=")[0] for each in unknown if each.startswith("-")), None)
    if option is None:
        parser.exit(2, f"{parser.prog}: unexpected argument {unknown[0]!r}; {parser.prog} --help shows what it takes\n")
    meant = probably_meant(option, parser._option_string_actions)
    hint = f"did you mean {meant}?" if meant else f"{parser.prog} --help shows all"
    parser.exit(2, f"{parser.prog}: unknown option {option}; {hint}\n")


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
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="only who sends this key is answered; may be given several times, each key has a cache of its own",
    )
    group.add_argument("--api-key-file", metavar="FILE", help="keys as by --api-key, one on each line")
    group.add_argument(
        "--served-model-name",
        action="append",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names of the model in requests and answers; the first is used where a request gives none, or another "
        "(default: the alias, the hub id, or the last part of the path)",
    )
    group.add_argument(
        "--strict-model-name", action="store_true", help="refuse requests for a model of another name with 404"
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        type=_origin,
        default=[],
        metavar="ORIGIN",
        help="let scripts of web pages from this origin ask; may be given several times, * is any (default: none)",
    )
    group = parser.add_argument_group("stored responses (/v1/responses, in memory)")
    group.add_argument(
        "--responses-max", type=_count, default=4096, metavar="N", help="most that are kept; 0: none (default: 4096)"
    )
    group.add_argument(
        "--responses-bytes",
        type=_count,
        default=256 * 2**20,
        metavar="N",
        help="most memory for them, conversations and their tokens counted once (default: 256 MiB)",
    )
    group.add_argument(
        "--responses-ttl",
        type=_count,
        default=30 * 24 * 3600,
        metavar="SECONDS",
        help="how long after its last use one is kept (default: 30 days)",
    )
    options.add_model_options(parser, log_level="info")
    options.add_scheduling_options(parser)


def _origin(text: str) -> str:
    if text not in ("*", "null") and not re.fullmatch(r"[a-zA-Z][\w+.-]*://[^/?#\s]+", text):
        raise argparse.ArgumentTypeError(f"must be *, or as https://example.org:8080 without a path; not {text!r}")
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more; not {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"must be between 0 and 65535, not {text!r}")
    return int(text)


def _add_chat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "chat", "talk with a model in the terminal")
    parser.add_argument("--system", metavar="TEXT", help="the system message that opens the conversation")
    options.add_sampling_options(parser, max_tokens="what the context leaves")
    options.add_model_options(parser, log_level="warning")


def _add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "generate", "complete one prompt and print the text as it comes")
    parser.add_argument("prompt", nargs="?", help="the prompt's text; read from standard input where it is absent")
    options.add_sampling_options(parser, max_tokens="128")
    options.add_model_options(parser, log_level="warning")


def _add_batch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "batch", "answer a file of requests in OpenAI's batch format", _BATCH)
    parser.add_argument("file", metavar="FILE", help="the requests")
    parser.add_argument("-o", "--output", metavar="OUT", help="the answers (default: FILE with the ending .out.jsonl)")
    parser.add_argument("--url", metavar="URL", help="ask this running server instead of starting a model")
    parser.add_argument("--concurrency", type=int, default=64, metavar="N", help="lines at once (default: 64)")
    options.add_model_options(parser, log_level="warning")
    options.add_scheduling_options(parser)


def _add_pull(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "pull", f"fetch a model into the cache ({CACHE}) and print where it is")
    parser.add_argument("model", nargs="?", default="smollm2", help="alias or hub id (default: smollm2)")


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "bench", "measure a running server, alone or beside a peer", _BENCH)
    parser.add_argument("url", help="the server's address, such as http://127.0.0.1:8000")
    parser.add_argument("--peer", metavar="URL", help="another OpenAI-compatible server to measure beside it")
    parser.add_argument("--model", metavar="NAME", help="model name to send (default: the first that the server lists)")
    parser.add_argument("--only", metavar="W1,W4", help="run these workloads only")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="multiply request counts (default: 1.0)")


def _add_grammar(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _command(commands, "grammar", "say what a schema, regex or EBNF grammar would do to documents", _GRAMMAR)
    defaults = Constraint("json_schema")
    parser.add_argument("file", metavar="FILE", help="the constraint")
    parser.add_argument(
        "documents", metavar="DOCUMENT", nargs="*", default=[], help="what to accept or reject; may be left out"
    )
    kinds = parser.add_mutually_exclusive_group()
    for kind, what in (("schema", "a JSON schema"), ("regex", "a regular expression"), ("ebnf", "a GBNF grammar")):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=f"FILE is {what}")
    parser.add_argument("--json", action="store_true", help="print JSON: one line about the constraint, one a document")
    parser.add_argument(
        "--model", default="smollm2", metavar="NAME", help="whose tokenizer to compile for (default: smollm2)"
    )
    parser.add_argument(
        "--engine",
        dest="grammar_engine",
        choices=("auto", "llguidance", "xgrammar"),
        help=f"grammar engine (default: {defaults.engine})",
    )
    parser.add_argument(
        "--max-whitespace",
        type=int,
        metavar="N",
        help=f"whitespace between two tokens of JSON (default: {defaults.max_whitespace})",
    )
    parser.add_argument(
        "--max-string",
        type=int,
        metavar="N",
        help=f"longest string where nothing else says; 0: any (default: {defaults.max_string})",
    )
    parser.add_argument(
        "--extra-properties",
        action="store_const",
        const=True,
        help="where a schema names properties, let completions have others as well",
    )
    parser.add_argument(
        "--relax",
        dest="strict",
        action="store_const",
        const=False,
        help="let pass what cannot be enforced, and say so",
    )
