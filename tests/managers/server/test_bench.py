"""The workload driver, against a server that computes nothing."""

from __future__ import annotations

import argparse
import json
import random

import pytest

from sapwood.managers.cli import workloads as bench
from sapwood.managers.cli.bench import _bench
from sapwood.managers.wire.errors import RequestFailed


async def test_every_workload_measures_what_it_sent(client, front):
    target = await bench.open_target(client.session, client.url, None)
    for name in bench.WORKLOADS:
        result = await bench.measure(target, name, scale=0.1)
        assert result.requests > 0
        assert result.prompt_tokens == 7 * result.requests
        assert result.cached_tokens == 3 * result.requests
        assert result.completion_tokens == (1 if name == "W2_prefill" else 10) * result.requests
        assert 0 < result.ttft_p50 <= result.ttft_max <= result.wall
    assert all(submit.sampling.ignore_eos and submit.sampling.temperature == 0 for submit in front.submits)


async def test_the_same_workload_sends_the_same_prompts_each_time(client, front):
    target = await bench.open_target(client.session, client.url, None)
    sent = []
    for _ in range(2):
        front.submits.clear()
        await bench.measure(target, "W5_tree", scale=1)
        sent.append(sorted(submit.prompt[0] for submit in front.submits))
    assert sent[0] == sent[1]
    assert len(sent[0]) == 4 + 16 + 64


async def test_few_shot_prompts_share_their_first_thousand_words(client, front):
    await bench.few_shot(await bench.open_target(client.session, client.url, None), random.Random(1), 0.1)
    prompts = [submit.prompt[0].split() for submit in front.submits[1:]]
    assert len({tuple(words[:1000]) for words in prompts}) == 1
    assert len({tuple(words[1000:]) for words in prompts}) == len(prompts)


async def test_with_a_peer_a_table_of_ratios_follows_the_lines(client, capsys):
    arguments = argparse.Namespace(url=client.url, peer=client.url + "/", model="fake-model", scale=0.1)
    await _bench(arguments, ["W1_single_decode", "W2_prefill"])
    *lines, head, first, second = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [json.loads(line)["workload"] for line in lines] == ["W1_single_decode"] * 2 + ["W2_prefill"] * 2
    assert "ratio" in head
    assert first.startswith("W1_single_decode")
    assert second.count("x") == 3


def test_workloads_are_chosen_by_number_or_name():
    assert bench.chosen_workloads(None) == list(bench.WORKLOADS)
    assert bench.chosen_workloads("W4,W1_single_decode") == ["W4_few_shot", "W1_single_decode"]
    with pytest.raises(bench.BenchError, match=r"W9.*W1_single_decode"):
        bench.chosen_workloads("W9")


async def test_a_server_that_refuses_is_reported_in_a_sentence(client, front):
    front.failure = (0, RequestFailed("No luck."))
    with pytest.raises(bench.BenchError, match=r"answered 500: .*No luck\."):
        await bench.open_target(client.session, client.url, None)
    with pytest.raises(bench.BenchError, match=r"Nothing answers at http://127\.0\.0\.1:9\."):
        await bench.open_target(client.session, "http://127.0.0.1:9", None)
