"""/generate and /score."""

from __future__ import annotations

import json


async def test_generate_takes_text_and_token_ids_mixed_and_answers_in_full(client, front):
    body = {"prompt": ["a", 1, [2, 3], "b"], "max_tokens": 2, "logprobs": 1, "prompt_logprobs": 0, "request_id": "r"}
    status, answer = await client.post("/generate", body)
    assert status == 200
    assert front.submits[0].prompt == ["a", [1, 2, 3], "b"]
    [choice] = answer["choices"]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("Once upon", [100, 101], "length")
    assert choice["matched_stop"] is None
    first = choice["logprobs"][0]
    assert (first["token_id"], first["text"], first["bytes"], first["logprob"]) == (100, "Once", [*b"Once"], -0.5)
    assert first["top"] == [{"token_id": 100, "text": "Once0", "bytes": [*b"Once0"], "logprob": -0.5}]
    assert [each["logprob"] for each in choice["prompt_logprobs"]] == [None, -0.5]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert (answer["request_id"], answer["model"]) == ("r", "fake-model")


async def test_generate_with_no_tokens_only_fills_the_cache(client, front):
    status, answer = await client.post("/generate", {"prompt": "a", "max_tokens": 0})
    assert status == 200
    assert answer["choices"][0]["text"] == ""
    assert answer["usage"]["completion_tokens"] == 0


async def test_generate_streams_deltas_that_join_to_the_whole(client):
    body = {"prompt": "a", "n": 2, "max_tokens": 4, "logprobs": 0}
    _, whole = await client.post("/generate", body)
    events = await client.events("/generate", body)
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    for expected in whole["choices"]:
        own = [choice for choice in choices if choice["index"] == expected["index"]]
        assert "".join(choice["text"] for choice in own) == expected["text"]
        assert [token_id for choice in own for token_id in choice["token_ids"]] == expected["token_ids"]
        assert [token for choice in own for token in choice["logprobs"]] == expected["logprobs"]
        assert [choice["finish_reason"] for choice in own] == [None, None, None, "length"]
    assert json.loads(events[-2])["usage"] == whole["usage"]


async def test_generate_takes_a_conversation(client, front):
    status, _ = await client.post("/generate", {"messages": [{"role": "user", "content": "hi"}]})
    assert status == 200
    assert front.submits[0].chat is not None


async def test_score_answers_every_continuation_in_order(client, front):
    body = {"prompt": "a", "continuations": ["x", [1, 2], "z"], "logprobs": 2, "cache_salt": "s", "priority": -1}
    status, answer = await client.post("/score", body)
    assert status == 200
    assert [(each["index"], each["logprob"], len(each["tokens"])) for each in answer["scores"]] == [
        (0, -1.0, 2),
        (1, -1.0, 2),
        (2, -1.0, 2),
    ]
    assert [token["token_id"] for token in answer["scores"][1]["tokens"]] == [11, 21]
    assert len(answer["scores"][0]["tokens"][0]["top"]) == 2
    assert answer["usage"]["prompt_tokens"] == 21, "each continuation is a prompt of its own"
    submit = front.submits[0]
    assert (submit.score, submit.namespace, submit.priority) == (["x", [1, 2], "z"], "s", -1)


async def test_metrics_show_the_books_and_the_requests(client):
    await client.post("/generate", {"prompt": "a", "max_tokens": 2})
    await client.post("/generate", {"prompt": 1})
    async with client.session.get(client.url + "/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        lines = (await response.text()).splitlines()
    for line in (
        'sapwood_slots{state="evictable"} 6.0',
        "sapwood_running 7.0",
        'sapwood_tokens_total{kind="cached"} 11.0',
        'sapwood_dropped_frames_total{process="front"} 5.0',
        'sapwood_http_requests_total{endpoint="/generate",status="200"} 1.0',
        'sapwood_http_requests_total{endpoint="/generate",status="400"} 1.0',
        "sapwood_time_to_first_token_seconds_count 1.0",
        "sapwood_inter_token_seconds_count 1.0",
        "sapwood_http_requests_open 0.0",
    ):
        assert line in lines


async def test_the_cache_is_flushed_on_post(client):
    async with client.session.post(client.url + "/flush_cache") as response:
        assert (response.status, await response.json()) == (200, {"freed_tokens": 42})
    assert (await client.get("/flush_cache"))[0] == 405
