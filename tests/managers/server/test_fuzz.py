"""Bodies that nobody would write: each is answered with 200 or a 4xx in JSON, and the server stays healthy."""

from __future__ import annotations

import json
import random
from typing import Any

import aiohttp

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}, "b": {"anyOf": [{"enum": [1, "x"]}, {"$ref": "#"}]}},
    "required": ["a"],
    "additionalProperties": False,
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "prompt": ["hello", "there"],
        "max_tokens": 2,
        "temperature": 0.5,
        "logprobs": 1,
        "logit_bias": {"5": 1},
        "stop": ["x"],
        "stream": False,
        "stream_options": None,
        "n": 1,
        "seed": 1,
        "json_schema": SCHEMA,
        "strict": False,
        "max_string": 9,
    },
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "4"},
        ],
        "max_tokens": 2,
        "logprobs": True,
        "top_logprobs": 1,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "chat_template_kwargs": {},
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "namespace": "s", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "4"}]},
        ],
        "instructions": "Be brief.",
        "previous_response_id": None,
        "max_output_tokens": 2,
        "top_logprobs": 1,
        "include": ["message.output_text.logprobs"],
        "tools": [
            {"type": "namespace", "name": "s", "description": "", "tools": [{"type": "function", "name": "f"}]},
            {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "regex", "definition": "a"}},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "c"}]},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "metadata": {"a": "b"},
        "background": False,
        "store": True,
    },
    "/generate": {
        "prompt": ["a", 1, [2, 3]],
        "max_tokens": 2,
        "logprobs": 0,
        "prompt_logprobs": 0,
        "top_p": 0.9,
        "min_p": 0.1,
        "stop_token_ids": [1],
        "cache_salt": "s",
        "priority": 1,
        "structural_tag": {"triggers": ["<"], "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}]},
        "max_whitespace": 0,
    },
    "/score": {"prompt": "a", "continuations": ["b", [1, 2]], "logprobs": 1},
    "/abort": {"request_id": "nobody"},
    "/flush_cache": {},
}
JUNK = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**40,
    0.5,
    -0.0,
    1e308,
    "",
    "x",
    "\0",
    "🚲" * 50,
    "<|im_start|>",
    "a" * 100_000,
    [],
    [[]],
    [None],
    [0] * 1000,
    {},
    {"": {}},
    {"type": "text"},
    [{"role": "user"}],
]


def mutated(rng: random.Random, value: Any) -> Any:
    """The value with one thing changed somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        match rng.randrange(6):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, rng.choice(["", "x", key.upper(), "n", "stream", "prompt"]): rng.choice(JUNK)}
            case _:
                return {**value, key: mutated(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], mutated(rng, value[place]), *value[place + rng.randrange(2) :]]
    return rng.choice(JUNK)


def broken(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a few of them cut, changed or doubled."""
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data) + 1)
        junk = [b"", b"\xff", b"NaN", b'"', b"{", b"]", b"\\u0000", b"1e999", bytes([rng.randrange(256)])]
        data = data[:place] + rng.choice(junk) + data[place + rng.randrange(3) :]
    return data


async def fuzz(session: aiohttp.ClientSession, url: str, seed: int, count: int) -> set[int]:
    """Send `count` strange bodies, and return the statuses that came back."""
    rng = random.Random(seed)
    statuses = set()
    for _ in range(count):
        path = rng.choice(list(BODIES))
        body = BODIES[path]
        for _ in range(rng.randrange(1, 4)):
            body = mutated(rng, body)
        data = json.dumps(body).encode()
        if rng.random() < 0.2:
            data = broken(rng, data)
        async with session.post(url + path, data=data) as response:
            raw = await response.read()
        statuses.add(response.status)
        assert response.status < 500, (path, data[:1000], raw)
        if response.status != 200:
            error = json.loads(raw)["error"]
            assert error["message"], (path, data)
            assert response.status in (400, 404), (path, data[:1000], raw)
    async with session.get(url + "/health") as response:
        assert response.status == 200
    return statuses


async def test_strange_bodies_never_get_further_than_a_4xx(client):
    assert await fuzz(client.session, client.url, seed=1, count=1500) == {200, 400, 404}


async def test_strange_bodies_never_get_further_than_a_4xx_on_a_real_server(server_url):
    good = {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    async with aiohttp.ClientSession() as session:
        async with session.post(server_url + "/v1/completions", json=good) as response:
            before = (await response.json())["choices"]
        await fuzz(session, server_url, seed=2, count=100)
        async with session.post(server_url + "/v1/completions", json=good) as response:
            assert (await response.json())["choices"] == before
