"""Every head, inner column and token id has a rank; whatever the numbers are, no rank is left without."""

from __future__ import annotations

import pytest

from sapwood.runtime.errors import UnsupportedModel
from sapwood.runtime.model.config import ModelConfig, Rope
from sapwood.runtime.model.shard import Shard, cut


def config(heads: int, kv_heads: int, inner: int = 96, vocab: int = 100) -> ModelConfig:
    return ModelConfig("llama", vocab, 64, inner, 2, heads, kv_heads, 8, 1e-5, 128, Rope(), True, ())


def shards(model: ModelConfig, size: int) -> list[Shard]:
    return [Shard.of(model, rank, size) for rank in range(size)]


@pytest.mark.parametrize("parts", range(1, 9))
@pytest.mark.parametrize("total", [8, 9, 10, 49152])
def test_a_cut_is_even_and_leaves_nothing_out(total: int, parts: int) -> None:
    runs = cut(total, parts)
    assert [item for run in runs for item in run] == list(range(total))
    assert {len(run) for run in runs} <= {total // parts, -(-total // parts)}
    assert len(runs[0]) == max(map(len, runs))


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 2), (8, 8), (32, 8), (14, 2), (6, 1), (12, 4)])
def test_each_query_head_is_with_its_key_value_head_in_one_rank(heads: int, kv_heads: int) -> None:
    for size in range(1, heads + 1):
        parts = shards(config(heads, kv_heads), size)
        assert [head for part in parts for head in part.heads] == list(range(heads))
        assert {head for part in parts for head in part.kv_heads} == set(range(kv_heads))
        group = heads // kv_heads
        for part in parts:
            assert {head // group for head in part.heads} == set(part.kv_heads)
            assert part.config.heads == len(part.heads)  # and the config's own check: they divide
        if size <= kv_heads:  # none is stored twice
            assert sum(len(part.kv_heads) for part in parts) == kv_heads


def test_smollm2s_heads_are_split_or_shared() -> None:
    def split(size: int) -> list[tuple[int, int]]:
        return [(part.config.heads, part.config.kv_heads) for part in shards(config(9, 3), size)]

    assert split(2) == [(6, 2), (3, 1)]
    assert split(3) == [(3, 1)] * 3
    assert split(4) == [(2, 1), (1, 1), (3, 1), (3, 1)]
    assert split(9) == [(1, 1)] * 9


def test_rows_of_heads_are_counted_in_their_dimensions() -> None:
    part = Shard.of(config(4, 2, inner=95), 1, 2)
    assert part.span("heads", 32) == range(16, 32)
    assert part.span("kv_heads", 16) == range(8, 16)
    assert part.span("inner", 95) == range(48, 95)
    assert part.span("vocab", 100) == range(50, 100)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (config(9, 3), "9 attention heads"),
        (config(16, 2, inner=7), "7 inner columns"),
        (config(16, 4, vocab=5), "5 token ids"),
    ],
)
def test_more_ranks_than_there_is_to_share_are_refused_by_name(model: ModelConfig, what: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"tp 10 is too large: the model has {what}"):
        Shard.of(model, 0, 10)
