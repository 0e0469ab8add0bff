"""The OpenAPI document says what the server does: every route, every field, every answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from sapwood.managers.cli import parser
from sapwood.managers.server.app import ENDPOINTS
from sapwood.managers.server.native.openapi import document
from sapwood.runtime.declaration import declared

from .conftest import Client

ROOT = Path(__file__).parents[3]
DOCUMENT: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document(ENDPOINTS)))
PATHS = {re.sub(r"\{(\w+)(:[^{}]*)?\}", r"{\1}", each.path) for each in ENDPOINTS}


def test_every_route_is_in_the_document_the_help_and_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    help_text = parser._SERVE
    assert {*DOCUMENT["paths"]} == PATHS
    for endpoint in ENDPOINTS:
        path = re.sub(r"\{(\w+)(:[^{}]*)?\}", r"{\1}", endpoint.path)
        assert endpoint.method.lower() in DOCUMENT["paths"][path]
        assert re.search(rf"(?<![\w/]){re.escape(path)}(?![\w/{{-])", help_text), path
        assert f"`{path}`" in readme, path


def test_every_declared_range_is_in_it() -> None:
    ranges = 0
    for endpoint in ENDPOINTS:
        if endpoint.body is None:
            continue
        properties = DOCUMENT["components"]["schemas"][endpoint.body.__name__]["properties"]
        for name, field in declared(endpoint.body).items():
            assert properties[name]["description"] == field.help
            if field.lowest is not None and "logit_bias" not in name:
                assert (properties[name]["minimum"], properties[name]["maximum"]) == (field.lowest, field.highest)
                ranges += 1
    assert ranges > 50


def _refs(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(_refs, value.values()))
    return set().union(*map(_refs, value)) if isinstance(value, list) else set()


def test_nothing_refers_to_nothing_and_schemas_are_such() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert {each.removeprefix("#/components/schemas/") for each in _refs(DOCUMENT)} <= {*schemas}
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    ids = [each["operationId"] for path in DOCUMENT["paths"].values() for each in path.values()]
    assert len(ids) == len({*ids})


@pytest.mark.parametrize(
    ("path", "body", "valid"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "temperature": -1}, False),
        ("/v1/chat/completions", {"messages": [{"role": "robot", "content": "a"}]}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, False),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "mirostat": 0, "n_predict": 4}, True),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "mirostat": 2}, False),
        ("/v1/completions", {"prompt": "a", "odd": 1}, False),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}, True),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}]}, False),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}], "stream": False}, True),
        ("/tokenize", {"prompt": 4}, False),
    ],
)
async def test_the_server_takes_what_the_document_allows(
    client: Client, path: str, body: dict[str, Any], valid: bool
) -> None:
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    schema = {**content["schema"], "components": DOCUMENT["components"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) == valid
    if path != "/tokenize" or not valid:
        async with client.session.post(client.url + path, json=body) as response:
            assert (response.status == 200) == valid, await response.text()
            answers = DOCUMENT["paths"][path]["post"]["responses"]
            kind = response.content_type
            answer = answers[str(response.status)]["content"][kind]["schema"]
            if kind == "application/json":
                told = {**answer, "components": DOCUMENT["components"]}
                jsonschema.validate(await response.json(), told, jsonschema.Draft202012Validator)


async def test_the_server_has_it(client: Client) -> None:
    assert await client.get("/openapi.json") == (200, DOCUMENT)
