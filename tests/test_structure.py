"""The floor plan, read off the source: no circles, no process in another's folder, nothing too large, one meaning for
every name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import sapwood

ROOT = Path(sapwood.__file__).parent
ROOMS = ("lang", "managers", "runtime", "radix", "constrained")
PROCESSES = {"front", "server", "tokenizer", "scheduler", "worker", "cli"}
FACES = {("server", "front"), ("cli", "front"), ("cli", "server")}
"""What stands on another: a server has a front, and `sapwood serve` starts a server."""
MOST_LINES = 400
MOST_MODULES = 16
LISTS_OF_ONE_KIND = {"runtime/model/families"}
"""Folders that may grow: each of their files is one more of a kind."""
ONE_MEANING = {
    "base": "the interface of its folder's implementations",
    "bodies": "request bodies: how they are decoded, and those of OpenAI's endpoints",
    "chat": "conversations: their templates, their endpoint, their command",
    "decoder": "the transformer: in torch, in the kernels",
    "engine": "an Engine, and the language's backend for one",
    "errors": "the exceptions of its folder",
    "front": "the process, and the class it is",
    "grammar": "grammars, and their command",
    "grammars": "grammars of requests: the tokenizer's, and the messages about them",
    "loading": "loads what its folder is about",
    "native": "Sapwood's own HTTP API: the server's side, the language's side",
    "openai": "OpenAI's HTTP API: the server's side, the language's side",
    "options": "the options of its folder",
    "params": "the parameters of a request",
    "process": "the body of its folder's process",
    "registry": "what its folder has, by name",
    "render": "the rendering of conversations: what is asked, its endpoint",
    "requests": "requests: as messages, and as callers write them",
    "routes": "the endpoints of its folder",
    "running": "what runs: programs, sequences",
    "sampling": "how tokens are chosen: in torch, in the kernels",
    "scheduler": "the process, and the class it is",
}
"""Module names that several folders have, with the one meaning that they have in all of them."""


def modules() -> Iterator[tuple[str, Path]]:
    """Name (without "sapwood.") and path of every module; a folder's is that of its __init__.py."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@cache
def imports() -> dict[str, frozenset[str]]:
    """For every module the modules it imports, wherever and under whatever condition it does so."""
    paths = dict(modules())
    found = {}
    for name, path in paths.items():
        package = path.relative_to(ROOT).parts[:-1]
        targets: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = ".".join((*package[: len(package) - (node.level - 1)], *filter(None, [node.module])))
                targets |= {each if each in paths else base for each in (f"{base}.{a.name}" for a in node.names)}
        found[name] = frozenset(targets & paths.keys() - {name})
    return found


def test_no_import_circle_not_even_for_types() -> None:
    graph: Mapping[str, Set[str]] = imports()
    assert len(graph) > 100
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"these import each other: {' <- '.join(error.args[1])}") from None


def test_no_process_imports_from_another_ones_folder() -> None:
    found = []
    for name, targets in imports().items():
        for target in targets:
            (room, *rest), (room_too, *rest_too) = name.split("."), target.split(".")
            if room == room_too == "managers" and rest and rest_too:
                pair = (rest[0], rest_too[0])
                if pair[0] != pair[1] and pair[1] in PROCESSES and pair not in FACES:
                    found.append(f"{name} imports {target}")
    assert found == []


def test_no_file_is_too_long() -> None:
    tests = Path(__file__).parent
    files = [*modules(), *((path.relative_to(tests).as_posix(), path) for path in tests.rglob("*.py"))]
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_folder_holds_too_much() -> None:
    counts: dict[str, int] = defaultdict(int)
    for _, path in modules():
        counts[path.parent.relative_to(ROOT).as_posix()] += path.name not in ("__init__.py", "__main__.py")
    too_many = {folder: count for folder, count in counts.items() if count > MOST_MODULES}
    assert too_many.keys() <= LISTS_OF_ONE_KIND, too_many


def test_every_class_name_has_one_meaning() -> None:
    """Names of classes that one file keeps to itself count as well."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name, path in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_every_module_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for name, path in modules():
        if path.name != "__main__.py":
            homes[name.rpartition(".")[2]].append(name)
    several = {name: where for name, where in homes.items() if len(where) > 1}
    assert {name: where for name, where in several.items() if name not in ONE_MEANING} == {}
    assert ONE_MEANING.keys() <= several.keys(), "these need no permission any more"
