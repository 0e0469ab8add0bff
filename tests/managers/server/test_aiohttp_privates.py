"""What the server uses of aiohttp beside its public face: in one file only, each name with what breaks without it.

`test_connections.py` shows that all of it works. Here an update of aiohttp that moves a name says so by that name.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from aiohttp import web

import sapwood
from sapwood.managers.server import connection

OVERRIDDEN = {
    (web.AppRunner, "_make_server"): "our connections are not made at all: plain aiohttp answers in their place",
    (web.Server, "__call__"): "our connections are not made at all: plain aiohttp answers in their place",
    (web.RequestHandler, "connection_made"): "a first head that never comes holds its connection for ever",
    (web.RequestHandler, "connection_lost"): "a timer fires on a connection that is gone",
    (web.RequestHandler, "data_received"): "a head that is begun and never finished holds its connection for ever",
    (web.RequestHandler, "handle_error"): "what is not HTTP is answered with aiohttp's page, not with a JSON error",
    (web.RequestHandler, "finish_response"): "a refusal outside of the application is not a JSON error",
}
READ = {
    (web.Server, "_loop"): "connections have no event loop",
    (web.Server, "_kwargs"): "connections lose their limits (line size, keep-alive, access log)",
    (web.RequestHandler, "_loop"): "the wait for a head cannot be bounded",
    (web.RequestHandler, "_current_request"): "a body that turns out not to be HTTP is waited for until it stalls",
    (web.RequestHandler, "_messages"): "a body that turns out not to be HTTP is waited for until it stalls",
    (web.RequestHandler, "_waiter"): "a connection between two requests is taken for one with a late head",
    (web.RequestHandler, "force_close"): "a late head does not end its connection",
    (web.RequestHandler, "transport"): "a late head ends its connection without a word",
}


@pytest.mark.parametrize(("owner", "name"), OVERRIDDEN, ids=lambda each: getattr(each, "__name__", each))
def test_what_is_overridden_is_there_to_override(owner: type, name: str) -> None:
    assert callable(getattr(owner, name, None)), f"aiohttp has no {owner.__name__}.{name}: {OVERRIDDEN[owner, name]}"


async def test_what_is_read_is_there_to_read() -> None:
    async def handler(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    server = web.Server(handler)
    made = {web.Server: server, web.RequestHandler: server()}
    for (owner, name), what_breaks in READ.items():
        assert hasattr(made[owner], name), f"aiohttp has no {owner.__name__}.{name}: {what_breaks}"


def test_one_file_uses_them_and_all_of_them_are_named_here() -> None:
    path = Path(inspect.getfile(connection))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {"_head_seconds", "_head_timer", "_spoke"}
    own |= {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    used = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute) and each.attr.startswith("_")}
    used = {name for name in used - own if not name.startswith("__")} | {"_make_server"}
    assert used == {name for _, name in (*OVERRIDDEN, *READ) if name.startswith("_") and not name.startswith("__")}


def test_no_other_file_goes_behind_aiohttps_face() -> None:
    """Nobody else derives from its classes, or reads a private name of what is not its own."""
    found = []
    for path in sorted(Path(sapwood.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "aiohttp" not in text or "tests" in path.parts or path.name == "connection.py":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                bases = [base for base in map(ast.unparse, node.bases) if base.startswith(("web.", "aiohttp."))]
                found += [f"{path.name}: class {node.name}({base})" for base in bases]
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                owner = ast.unparse(node.value)
                if owner not in ("self", "cls"):
                    found.append(f"{path.name}, line {node.lineno}: {owner}.{node.attr}")
    assert found == []
