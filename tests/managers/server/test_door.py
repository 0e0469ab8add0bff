"""What a server is asked in haste, and from web pages: odd paths, other names of the model, other origins."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from aiohttp import web

from sapwood.managers.cli.parser import parse
from sapwood.managers.server.access import Origins
from sapwood.managers.server.app import ENDPOINTS
from sapwood.managers.server.server_state import ServerState
from sapwood.managers.wire.answers import Rejected
from sapwood.managers.wire.errors import PromptTooLong
from sapwood.runtime.errors import SapwoodError

pytestmark = pytest.mark.fast
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
PAGE = "https://page.example"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "//v1//chat/completions",
        "/chat/completions",
        "/v1/v1/chat/completions",
        "/v1//chat//completions//",
        "//chat/completions/",
    ],
)
async def test_a_path_put_together_in_haste_leads_there(client, path):
    status, answer = await client.post(path, CHAT)
    assert (status, answer["object"]) == (200, "chat.completion")
    async with client.session.get(client.url + "/metrics") as response:
        assert 'sapwood_http_requests_total{endpoint="/v1/chat/completions",status="200"} 1.0' in await response.text()


@pytest.mark.parametrize(
    "path", ["/v1/models/", "/models", "//v1/models/", "/health/", "//health", "/models/fake-model/"]
)
async def test_so_does_one_that_is_read(client, path):
    assert (await client.get(path))[0] == 200


@pytest.mark.parametrize(
    "path", ["/v1/chat", "/v2/chat/completions", "/v1/chat/completionsx", "/v1chat/completions", "/"]
)
async def test_another_path_leads_nowhere_and_the_answer_lists_those_there_are(client, path):
    status, answer = await client.post(path, CHAT)
    assert status == 404
    assert "/v1/chat/completions" in answer["error"]["message"]
    assert "{_" not in answer["error"]["message"]


async def test_the_wrong_method_at_such_a_path_is_the_same_error(client):
    expected, found = (await client.get("/v1/completions"), await client.get("/completions/"))
    assert expected[0] == found[0] == 405
    assert expected[1] == found[1]


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answered"),
    [(None, "oak"), ("oak", "oak"), ("elm", "elm"), ("fake-model", "oak"), ("gpt-4o", "oak"), ("elm:latest", "elm")],
)
async def test_the_answer_has_the_name_that_was_asked_for_or_the_first(client, asked, answered):
    client.state.model_names, client.state.model_name = ("oak", "elm"), "oak"
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/generate", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        status, answer = await client.post(path, {**body, "model": asked} if asked else body)
        assert (status, answer["model"]) == (200, answered)
    events = await client.events("/v1/chat/completions", {**CHAT, "model": asked} if asked else CHAT)
    assert {json.loads(event)["model"] for event in events[:-1]} == {answered}


async def test_all_names_are_listed_and_no_others_found(client):
    client.state.model_names, client.state.model_name = ("oak", "elm"), "oak"
    assert [each["id"] for each in (await client.get("/v1/models"))[1]["data"]] == ["oak", "elm"]
    assert (await client.get("/v1/models/elm"))[1]["id"] == "elm"
    status, answer = await client.get("/v1/models/gpt-4o")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_names_are_given_by_the_command_line_and_may_be_strict(front):
    line = "serve --served-model-name oak elm --served-model-name ash --strict-model-name --cors-origin *"
    arguments = parse(line.split())
    assert arguments.served_model_name == [["oak", "elm"], ["ash"]]
    state = ServerState(front, "smollm2", names=("oak", "elm", "oak"), strict_names=arguments.strict_model_name)
    assert state.model_names == ("oak", "elm")
    assert [state.check_model(name) for name in (None, "elm", "oak", "smollm2")] == ["oak", "elm", "oak", "oak"]
    with pytest.raises(SapwoodError, match="'gpt-4o' is not served here; served is 'oak' and 'elm'"):
        state.check_model("gpt-4o")
    assert ServerState(front, "smollm2").check_model("gpt-4o") == "smollm2"


# --- origins --------------------------------------------------------------------------------------------------------


async def asked(client, method: str, path: str, origin: str | None = PAGE, **options: Any) -> Any:
    headers = {**({"Origin": origin} if origin else {}), **options.pop("headers", {})}
    async with client.session.request(method, client.url + path, headers=headers, **options) as response:
        await response.read()
        return response


@pytest.mark.parametrize("declared", sorted({each.path for each in ENDPOINTS}))
async def test_every_endpoint_answers_a_preflight_where_origins_are_allowed_and_else_405(client, declared):
    path = re.sub(r"{.*?}", "x", declared)
    response = await asked(client, "OPTIONS", path)
    assert (response.status, "Access-Control-Allow-Origin" in response.headers) == (405, False)
    client.state.origins = Origins([PAGE])
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}
    response = await asked(client, "OPTIONS", path, headers=wanted)
    assert response.status == 204
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    assert response.headers["Access-Control-Allow-Headers"] == "authorization,x-stainless-os"
    pattern = {each: re.sub(r"{\w+(:\.\+)?}", lambda m: ".+" if m[1] else "[^/]+", each.path) for each in ENDPOINTS}
    methods = {each.method for each in ENDPOINTS if re.fullmatch(pattern[each], path)}
    assert {*response.headers["Access-Control-Allow-Methods"].split(", ")} - {"HEAD"} == {*methods, "OPTIONS"}
    assert response.headers["Vary"] == "Origin"
    other = await asked(client, "OPTIONS", path, "https://other.example", headers=wanted)
    assert (other.status, "Access-Control-Allow-Origin" in other.headers) == (405, False)


@pytest.mark.parametrize(
    ("allowed", "origin", "answer"),
    [
        (["*"], PAGE, "*"),
        ([PAGE, "null"], "null", "null"),
        ([PAGE.upper() + "/"], PAGE, PAGE),
        ([PAGE], "https://page.example:8443", None),
        ([PAGE], "http://page.example", None),
        ([PAGE], None, None),
        ([], PAGE, None),
    ],
)
async def test_answers_errors_and_streams_say_who_may_read_them(client, allowed, origin, answer):
    client.state.origins = Origins(allowed)
    path = "/v1/chat/completions"
    for method, where, options in (
        ("GET", "/health", {}),
        ("POST", path, {"json": CHAT}),
        ("POST", path, {"json": {**CHAT, "stream": True}}),
        ("POST", path, {"json": {"messages": 5}}),
        ("GET", path, {}),
        ("GET", "/nowhere", {}),
    ):
        response = await asked(client, method, where, origin, **options)
        assert response.headers.get("Access-Control-Allow-Origin") == answer, (method, where)
        assert ("Access-Control-Expose-Headers" in response.headers) == (answer is not None)


async def test_a_preflight_to_nowhere_is_not_found(client):
    client.state.origins = Origins(["*"])
    assert (await asked(client, "OPTIONS", "/nowhere")).status == 404
    assert (await asked(client, "OPTIONS", "/chat/completions/")).status == 204


@pytest.mark.parametrize("origin", ["page.example", "https://page.example/path", "", "https://"])
def test_what_is_no_origin_is_refused_by_the_command_line(origin, capsys):
    with pytest.raises(SystemExit):
        parse(["serve", f"--cors-origin={origin}"])
    assert "must be *, or as https://example.org:8080" in capsys.readouterr().err


def test_endpoints_have_paths_that_aiohttp_knows():
    for each in ENDPOINTS:
        web.UrlDispatcher().add_resource(each.tolerant_path)


# --- prompts that are too long --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate", "/score"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_says_so_as_clients_match_it(client, front, path, stream):
    bodies = {"/v1/chat/completions": CHAT, "/score": {"prompt": "a", "continuations": ["b"]}}
    if stream and path == "/score":
        return
    error = PromptTooLong.of("70", 64, ("prompt",))
    front.refusal = Rejected.of("r", error).error()
    status, answer = await client.post(
        path, {**bodies.get(path, {"prompt": ["a"]}), **({"stream": True} if stream else {})}
    )
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (
        400,
        "context_length_exceeded",
        "invalid_request_error",
    )
    assert "This model's maximum context length is 64 tokens" in answer["error"]["message"]
    assert "prompt is too long" in answer["error"]["message"]


async def test_so_does_one_of_several(client, front):
    front.failure = (0, Rejected.of("r", PromptTooLong.of("70", 64, ("prompt",))).error())
    status, answer = await client.post("/v1/completions", {"prompt": ["a", "b"]})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answer["error"]["param"].startswith("prompt[")
