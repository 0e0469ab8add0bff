"""Whatever is wrong with a request, its sender gets a JSON error that names it, and nobody else notices."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from sapwood.managers.server.reading import MAX_BODY_BYTES
from sapwood.managers.wire.errors import EngineDead, InvalidRequest, Overloaded, RequestFailed

USER = [{"role": "user", "content": "hi"}]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": USER}, "/generate": {"prompt": "hi"}}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def named_choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def named_schema(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, **more}}


TOOLS = [tool("f")]
ALLOWED = "tool_choice.allowed_tools"


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The error of an answer, once its form is known to be OpenAI's."""
    assert list(answer) == ["error"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"].endswith((".", "}", "?"))
    return answer["error"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("top_p", -0.1),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("top_k", -2),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", -2.5),
        ("n", 0),
        ("n", 10**6),
        ("n", True),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", 10**30),
        ("seed", 2**70),
        ("seed", "x"),
        ("stop", [1]),
        ("stop", ""),
        ("stop_token_ids", [999_999]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [10**30]),
        ("min_tokens", -1),
        ("cache_salt", 5),
        ("cache_salt", "x" * 1000),
        ("request_id", ""),
        ("request_id", "x" * 1000),
        ("request_id", "a header: injected\r\nX: y"),
        ("priority", 2**40),
        ("ignore_eos", "yes"),
        ("stream", 1),
        ("no_such_field", 1),
    ],
)
async def test_a_bad_value_is_refused_by_the_name_of_its_field(client, front, path, field, value):
    status, answer = await client.post(path, {**BODIES[path], field: value})
    assert status == 400
    error = checked(answer)
    assert error["param"].startswith(field)
    assert field in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not front.submits, "it must not get past the door"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("key", ["999999", "-1", "x", "1.5"])
async def test_a_bad_token_id_in_logit_bias_is_refused(client, path, key):
    status, answer = await client.post(path, {**BODIES[path], "logit_bias": {key: 5}})
    assert status == 400
    assert checked(answer)["param"].startswith("logit_bias")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
async def test_numbers_that_json_does_not_have_are_refused_by_field(client, value):
    status, answer = await client.post(COMPLETIONS, data=f'{{"prompt": "hi", "temperature": {value}}}')
    assert status == 400
    assert checked(answer)["param"] == "temperature"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {}, "prompt"),
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": [""]}, "prompt[0]"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt[0]"),
        (COMPLETIONS, {"prompt": ["hi", ""]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": ["hi", 1]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, 10**6]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [[1], [2, 10**6]]}, "prompt[1][1]"),
        (COMPLETIONS, {"prompt": [True]}, "prompt[0]"),
        (COMPLETIONS, {"prompt": ["x"] * 1025}, "prompt"),
        (COMPLETIONS, {"prompt": ["x"] * 51, "n": 2}, "prompt"),
        (COMPLETIONS, {"prompt": {"text": "hi"}}, "prompt"),
        (COMPLETIONS, {"prompt": "hi", "suffix": "x"}, "suffix"),
        (COMPLETIONS, {"prompt": "hi", "best_of": 2}, "best_of"),
        (COMPLETIONS, {"prompt": "hi", "logprobs": True}, "logprobs"),
        (COMPLETIONS, {"prompt": "hi", "logprobs": -1, "echo": True}, "logprobs"),
        (COMPLETIONS, {"prompt": "hi", "stream_options": {"include_usage": True}}, "stream_options"),
        (COMPLETIONS, {"prompt": "hi", "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": ["hi"]}, "messages[0]"),
        (CHAT, {"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role"),
        (
            CHAT,
            {"messages": USER, "chat_template_kwargs": {"chat_template": "x"}},
            "chat_template_kwargs.chat_template",
        ),
        (CHAT, {"messages": USER, "chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs.tokenize"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "token_ids", "token_ids": [10**6]}]}]},
            "messages[0].content[0].token_ids",
        ),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        (CHAT, {"messages": [*USER, {"role": "assistant", "function_call": {}}]}, "messages[1].function_call"),
        (CHAT, {"messages": USER, "top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"messages": USER, "top_logprobs": 1, "logprobs": False}, "top_logprobs"),
        (CHAT, {"messages": USER, "top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        (CHAT, {"messages": USER, "logprobs": 2}, "logprobs"),
        (CHAT, {"messages": USER, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        (CHAT, {"messages": USER, "max_completion_tokens": -1}, "max_completion_tokens"),
        (CHAT, {"messages": USER, "response_format": {"type": "xml"}}, "response_format.type"),
        (CHAT, {"messages": USER, "response_format": {}}, "response_format.type"),
        (CHAT, {"messages": USER, "response_format": {"type": "json_object", "schema": "x"}}, "response_format.schema"),
        (CHAT, {"messages": USER, "response_format": {"type": "text", "strict": True}}, "response_format"),
        (CHAT, {"messages": USER, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            CHAT,
            {"messages": USER, "response_format": {"type": "json_schema", "schema": {}}},
            "response_format.json_schema",
        ),
        (CHAT, {"messages": USER, "response_format": named_schema(schema="{}")}, "response_format.json_schema.schema"),
        (
            CHAT,
            {"messages": USER, "response_format": named_schema(strict="yes")},
            "response_format.json_schema.strict",
        ),
        (CHAT, {"messages": USER, "response_format": named_schema(name=5)}, "response_format.json_schema.name"),
        (CHAT, {"messages": USER, "response_format": named_schema(rules=[])}, "response_format.json_schema"),
        (CHAT, {"messages": USER, "response_format": named_schema(), "regex": "a"}, "regex"),
        (CHAT, {"messages": USER, "response_format": named_schema(strict=False), "strict": True}, "strict"),
        (COMPLETIONS, {"prompt": "hi", "response_format": named_schema(), "ignore_eos": True}, "ignore_eos"),
        (COMPLETIONS, {"prompt": "hi", "response_format": {"type": "json_object"}, "strict": False}, "strict"),
        (CHAT, {"messages": USER, "modalities": ["audio"]}, "modalities"),
        (CHAT, {"messages": USER, "functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"messages": USER, "audio": {"voice": "alloy"}}, "audio"),
        (CHAT, {"messages": USER, "mirostat": 2}, "mirostat"),
        (CHAT, {"messages": USER, "metadata": {}, "guided_regex": "a", "regex": "b"}, "guided_regex"),
        (CHAT, {"messages": USER, "metadata": {}, "guided_regex": 5}, "guided_regex"),
        (COMPLETIONS, {"prompt": "hi", "n_predict": -3}, "n_predict"),
        (COMPLETIONS, {"prompt": "hi", "add_special_tokens": False}, "add_special_tokens"),
        (CHAT, {"messages": USER, "reasoning_effort": "low"}, "reasoning_effort"),
        (CHAT, {"messages": USER, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": USER, "tool_choice": "sometimes", "tools": TOOLS}, "tool_choice"),
        (CHAT, {"messages": USER, "tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice"),
        (CHAT, {"messages": USER, "tool_choice": named_choice("g"), "tools": TOOLS}, "tool_choice"),
        (
            CHAT,
            {"messages": USER, "tool_choice": {"type": "allowed_tools"}, "tools": TOOLS},
            "tool_choice.allowed_tools",
        ),
        (CHAT, {"messages": USER, "tools": [*TOOLS, *TOOLS]}, "tools[1].function.name"),
        (CHAT, {"messages": USER, "tools": TOOLS * 129}, "tools"),
        (CHAT, {"messages": USER, "tools": [tool("two words")]}, "tools[0].function.name"),
        (CHAT, {"messages": USER, "tools": [tool("f", parameters=[])]}, "tools[0].function.parameters"),
        (CHAT, {"messages": USER, "tools": [tool("f", parameters={"type": "array"})]}, "tools[0].function.parameters"),
        (CHAT, {"messages": USER, "tools": [tool("f", strict=1)]}, "tools[0].function.strict"),
        (CHAT, {"messages": USER, "tools": TOOLS, "min_tokens": 3}, "min_tokens"),
        (CHAT, {"messages": USER, "tool_choice": "none", "tools": [{"type": "function"}]}, "tools[0].function"),
        (CHAT, {"messages": USER, "echo": True}, "echo"),
        (
            CHAT,
            {"messages": USER, "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
        ("/generate", {"prompt": "hi", "messages": USER}, "prompt"),
        ("/generate", {}, "prompt"),
        ("/generate", {"prompt": "hi", "logprob_start": 1}, "logprob_start"),
        ("/score", {"prompt": "hi"}, "continuations"),
        ("/score", {"prompt": "hi", "continuations": []}, "continuations"),
        ("/score", {"prompt": "hi", "continuations": ["a", ""]}, "continuations[1]"),
        ("/score", {"prompt": "hi", "continuations": ["a"], "temperature": 1}, "temperature"),
        ("/flush_cache", {"x": 1}, "x"),
        ("/abort", {}, "request_id"),
    ],
)
async def test_a_bad_body_is_refused_by_the_name_of_what_is_wrong(client, front, path, body, param):
    status, answer = await client.post(path, body)
    assert status == 400, answer
    assert checked(answer)["param"] == param, answer
    assert not front.submits


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"prompt"',
        b'{"prompt": "hi"} trailing',
        b'{"prompt": "\xff"}',
        b'\xef\xbb\xbf{"prompt": "hi"}',
        '{"prompt": "hi"}'.encode("utf-16"),
        b'{"prompt": "\\ud800"}',
        b"prompt=hi",
        b"[" * 100_000,
        b'{"messages": [' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"]}",
        b'{"chat_template_kwargs": {"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
    ],
    ids=repr,
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/generate", "/score", "/abort"])
async def test_a_body_that_is_not_what_it_should_be_is_a_400(client, path, data):
    status, answer = await client.post(path, data=data)
    assert status == 400
    checked(answer)


async def test_a_body_that_is_too_large_is_a_413_announced_or_not(client):
    async def unannounced():
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    for data in (b" " * (MAX_BODY_BYTES + 1), unannounced()):
        try:
            status, answer = await client.post(COMPLETIONS, data=data)
        except ConnectionError:  # the server may hang up while the rest of the body is still being sent
            continue
        assert status == 413
        assert checked(answer)["code"] == "body_too_large"
    assert (await client.get("/health"))[0] == 200


async def test_a_compressed_body_is_refused_unread(client):
    data = gzip.compress(b'{"prompt": "hi"}')
    status, answer = await client.post(COMPLETIONS, data=data, headers={"Content-Encoding": "gzip"})
    assert status == 415
    assert "Content-Encoding" in checked(answer)["message"]


async def test_unknown_paths_and_methods_are_json_errors(client):
    for path in ("/", "/v2/nothing"):
        status, answer = await client.get(path)
        assert status == 404
        assert all(each in checked(answer)["message"] for each in ("/abort,", "/generate,", "/v1/chat/completions,"))
    async with client.session.delete(client.url + CHAT) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        assert "POST" in checked(await response.json())["message"]


async def test_what_is_not_http_is_a_400_and_one_line_in_the_log(client, caplog):
    port = int(client.url.rpartition(":")[2])
    for data in (b"GET /health HTTP/1.1\r\nBad Header\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET /" + b"a" * 20_000):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        assert (await reader.readline()).startswith(b"HTTP/1.0 400")
        writer.close()
    assert caplog.records
    assert all(record.exc_info is None and "\n" not in record.getMessage() for record in caplog.records)
    assert (await client.get("/health"))[0] == 200


async def test_an_error_quotes_no_more_than_the_ends_of_what_is_very_long(client):
    client.state.strict_names = True
    for body in ({"prompt": "hi", "model": "m" * 10**6}, {"prompt": "hi", "k" * 10**6: 1}):
        status, answer = await client.post(COMPLETIONS, body)
        assert status in (400, 404)
        assert len(json.dumps(checked(answer))) < 5000


@pytest.mark.parametrize("path", BODIES)
async def test_an_unknown_model_is_a_404_where_names_are_strict_and_says_which_one_is_served(client, path):
    client.state.strict_names = True
    status, answer = await client.post(path, {**BODIES[path], "model": "gpt-4"})
    error = checked(answer)
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "fake-model" in error["message"]


async def test_an_id_that_is_in_use_is_refused_and_the_first_request_unharmed(client, front, eventually):
    front.gate.clear()
    first = asyncio.create_task(client.post("/generate", {"prompt": "hi", "request_id": "a", "max_tokens": 1}))
    await eventually(lambda: front.open)
    status, answer = await client.post(CHAT, {"messages": USER, "request_id": "a"})
    assert (status, checked(answer)["param"]) == (400, "request_id")
    front.gate.set()
    assert (await first)[0] == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Overloaded("The queue is full."), 503, "overloaded"),
        (InvalidRequest("prompt has 70 tokens, 64 fit.", "prompt"), 400, "invalid_value"),
        (RequestFailed("The logits were not finite."), 500, "request_failed"),
        (EngineDead("The worker was killed."), 500, "engine_dead"),
        (ZeroDivisionError("secret detail"), 500, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("early", [False, True])
async def test_an_error_before_the_first_token_has_its_own_status(client, front, error, status, code, stream, early):
    front.refusal, front.failure = (error, None) if early else (None, (0, error))
    got, answer = await client.post(COMPLETIONS, {"prompt": "hi", "stream": stream})
    assert (got, checked(answer)["code"]) == (status, code)
    assert "secret" not in answer["error"]["message"]
    assert not front.open


async def test_an_overloaded_server_says_when_to_come_back(client, front):
    front.refusal = Overloaded("The queue is full.")
    async with client.session.post(client.url + COMPLETIONS, json={"prompt": "hi"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")


@pytest.mark.parametrize("path", BODIES)
async def test_an_error_in_mid_stream_is_an_event_and_the_end(client, front, path):
    front.failure = (3, RequestFailed("The logits were not finite."))
    events = await client.events(path, BODIES[path])
    assert checked(json.loads(events[-1]))["message"] == "The logits were not finite."
    assert "error" not in json.loads(events[-2])
    assert "[DONE]" not in events


async def test_one_bad_prompt_of_a_list_refuses_the_request_by_its_place_and_frees_the_rest(client, front):
    good = front.script

    def script(submit):
        return [InvalidRequest("prompt has 70 tokens, 64 fit.", "prompt")] if submit.prompt == ["b"] else good(submit)

    front.script = script
    status, answer = await client.post(COMPLETIONS, {"prompt": ["a", "b", "c"]})
    assert (status, checked(answer)["param"]) == (400, "prompt[1]")
    assert "prompt[1]" in answer["error"]["message"]
    assert not front.open


@pytest.mark.parametrize(
    "path", ["/v1/batches", "/v1/batches/batch_1/cancel", "/v1/files", "/v1//files/f/content", "/files"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_batches_and_files_name_the_command_that_does_it(client, path, method):
    async with client.session.request(method, client.url + path) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (404, "not_found")
    assert "`sapwood batch FILE`" in answer["error"]["message"]
