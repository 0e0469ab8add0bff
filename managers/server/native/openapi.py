"""The OpenAPI document, made of the endpoints' declarations: their structs, what these say of their fields, and the
answers that every endpoint may give. It must never say anything that the server does not do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, get_args, get_type_hints

import msgspec
from aiohttp import web

from ....runtime.declaration import declared
from ..endpoints import Endpoint
from ..errors import ErrorBody
from .conversation_schemas import SCHEMAS, described

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::[^{}]*)?\}")
_ANY = {
    400: "The request is wrong; the message names the field and says what is allowed.",
    401: "A key is needed, and none of them was sent.",
    403: "The origin may not ask this server.",
    404: "There is no such model, path or object.",
    405: "The path has other methods.",
    408: "The body stopped arriving.",
    413: "The body is too large.",
    415: "The body is compressed, which is not supported.",
    500: "The request could not be completed.",
    503: "The server is loading, stopping or full; ask again later.",
}
_COMPUTING = {409: "The request was aborted."}


class OpenApiDocument(msgspec.Struct, frozen=True):
    """An OpenAPI document, version 3.1."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


def document(endpoints: Iterable[Endpoint]) -> OpenApiDocument:
    """The document that describes these endpoints."""
    endpoints = list(endpoints)
    types = {each: None for endpoint in endpoints for each in _types(endpoint)}
    _, schemas = msgspec.json.schema_components([*types], ref_template=_REF)
    for struct in _structs(types):
        if struct.__name__ in schemas:
            _describe(struct, schemas[struct.__name__])
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = paths.setdefault(_PARAMETER.sub(r"{\1}", endpoint.path), {})
        path[endpoint.method.lower()] = _operation(endpoint)
    info = {"title": "Sapwood", "version": version("sapwood")}
    return OpenApiDocument("3.1.0", info, paths, {"schemas": {**schemas, **SCHEMAS}})


def openapi_endpoint(endpoints: Iterable[Endpoint]) -> Endpoint:
    """GET /openapi.json, of these endpoints and itself."""
    made: list[bytes] = []

    async def openapi(_: web.Request) -> web.Response:
        """GET /openapi.json."""
        if not made:
            made.append(msgspec.json.encode(document([*endpoints, endpoint])))
        return web.Response(body=made[0], content_type="application/json")

    endpoint = Endpoint("GET", "/openapi.json", openapi, "This document", answer=OpenApiDocument)
    return endpoint


def _types(endpoint: Endpoint) -> list[Any]:
    """What the bodies of its requests and answers are, errors included."""
    given = (endpoint.body, endpoint.answer, endpoint.event, _error(endpoint), ErrorBody)
    return [each for each in given if each is not None]


def _error(endpoint: Endpoint) -> Any:
    return get_type_hints(endpoint.error)["return"]


def _structs(types: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    for each in types:
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            yield each
        yield from _structs(get_args(each))


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    named = _PARAMETER.sub(r"by_\1", endpoint.path)
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method}{named}").lower(),
        "responses": {**_success(endpoint), **_failures(endpoint)},
    }
    names = _PARAMETER.findall(endpoint.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if endpoint.body is not None:
        content = {"application/json": {"schema": _schema(endpoint.body)}}
        operation["requestBody"] = {"required": endpoint.needs_body, "content": content}
    return operation


def _success(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.status != 200:
        return {}
    content: dict[str, Any] = {}
    if endpoint.answer is not None:
        content["application/json"] = {"schema": _schema(endpoint.answer)}
    elif endpoint.media != "application/json":
        content[endpoint.media] = {"schema": {"type": "string"}}
    if endpoint.event is not None:  # of a stream OpenAPI 3.1 has no word for what its pieces are
        kind = endpoint.stream_media
        text = "A stream: the data of each event, or each line, is JSON of the schema x-event."
        content[kind] = {"schema": {"type": "string", "description": text, "x-event": _schema(endpoint.event)}}
    return {"200": {"description": endpoint.summary, **({"content": content} if content else {})}}


def _failures(endpoint: Endpoint) -> dict[str, Any]:
    known = {**_ANY, **(_COMPUTING if endpoint.method == "POST" else {})}
    if endpoint.status != 200:
        known[endpoint.status] = endpoint.summary
    kinds = [_schema(_error(endpoint))]
    if _error(endpoint) is not ErrorBody:  # of what is not even HTTP, or no path, nobody knows whose it was
        kinds.append(_schema(ErrorBody))
    schema = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    content = {"application/json": {"schema": schema}}
    return {str(status): {"description": text, "content": content} for status, text in sorted(known.items())}


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def _describe(struct: type[msgspec.Struct], schema: dict[str, Any]) -> None:
    """Add what the struct says of its fields: help, ranges, other names, and what it tolerates."""
    properties: dict[str, Any] = schema.get("properties", {})
    for name, field in declared(struct).items():
        if name not in properties:
            continue
        said: dict[str, Any] = {"description": field.help}
        if field.lowest is not None and not _is_mapping(properties[name]):
            said["minimum"] = field.lowest
        if field.highest is not None and not _is_mapping(properties[name]):
            said["maximum"] = field.highest
        properties[name] = {**properties[name], **said}
        for other in field.elsewhere:
            if hasattr(struct, "tolerated") and other not in properties:
                properties[other] = {**properties[name], "description": f"another name of {name}"}
    for name, schema_of in described(struct.__name__).items():
        if name in properties:
            properties[name] = {**properties[name], **schema_of}
    tolerated: Mapping[str, Any] = getattr(struct, "tolerated", {})
    for name, each in tolerated.items():
        if name in properties or "." in name:
            continue
        allowed = {} if each.values is None else {"enum": [*each.values, None]}
        properties[name] = {"description": f"without effect: {each.reason}", **allowed}


def _is_mapping(schema: Mapping[str, Any]) -> bool:
    kinds = [schema, *schema.get("anyOf", [])]
    return any(each.get("type") == "object" for each in kinds)
