"""Tensor parallelism: which part of a model each rank computes. This module must not import torch.

The attention heads, the inner width of the MLPs and the vocabulary are cut into one run per rank, as evenly as whole
key-value heads allow; norms and the residual stream are everybody's. The cuts are those of Megatron-LM
(arXiv:1909.08053): the matrices that read the stream are cut by rows, those that write to it by columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ..errors import UnsupportedModel
from .config import ModelConfig


def cut(total: int, parts: int) -> list[range]:
    """0 .. total in so many consecutive runs, whose lengths differ by one at most; none is longer than the first."""
    ends = [(total * i + parts - 1) // parts for i in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


@dataclass(frozen=True)
class Shard:
    """What one rank has of a model.

    config: the model's, with this rank's numbers of heads, inner columns and token ids in place of the whole ones.
    heads, kv_heads, vocab: which ones of the whole model's those are.
    """

    rank: int
    size: int
    config: ModelConfig
    heads: range
    kv_heads: range
    vocab: range

    @staticmethod
    def of(config: ModelConfig, rank: int, size: int) -> Shard:
        """The part of `rank` among `size`. Raises UnsupportedModel where there are more ranks than things to cut.

        With more ranks than key-value heads, several ranks have the same one, and each some of its query heads.
        """
        for what, count in (
            ("attention heads", config.heads),
            ("inner columns", config.intermediate_size),
            ("token ids", config.vocab_size),
        ):
            if size > count:
                raise UnsupportedModel(f"tp {size} is too large: the model has {count} {what}, and each rank needs one")
        heads, kv_heads = _heads(config, rank, size)
        inner, vocab = cut(config.intermediate_size, size)[rank], cut(config.vocab_size, size)[rank]
        own = replace(
            config,
            heads=len(heads),
            kv_heads=len(kv_heads),
            intermediate_size=len(inner),
            vocab_size=len(vocab),
        )
        return Shard(rank, size, own, heads, kv_heads, vocab)

    def span(self, dimension: str, total: int) -> range:
        """Which of a whole matrix's `total` rows or columns are this rank's, by the name that a TensorSpec gives the
        cut: "heads" and "kv_heads", or "inner" and "vocab" for what is cut evenly; "" for what every rank has."""
        if not dimension:
            return range(total)
        if dimension in ("inner", "vocab"):
            return cut(total, self.size)[self.rank]
        run = {"heads": self.heads, "kv_heads": self.kv_heads}[dimension]
        return range(run.start * self.config.head_dim, run.stop * self.config.head_dim)


def _heads(config: ModelConfig, rank: int, size: int) -> tuple[range, range]:
    """The query heads and the key-value heads of a rank."""
    group = config.heads // config.kv_heads  # query heads that share a key-value head
    if size <= config.kv_heads:
        kv_heads = cut(config.kv_heads, size)[rank]
        return range(kv_heads.start * group, kv_heads.stop * group), kv_heads
    sharers = cut(size, config.kv_heads)
    head = next(i for i, ranks in enumerate(sharers) if rank in ranks)
    within = cut(group, len(sharers[head]))[rank - sharers[head].start]
    first = head * group
    return range(first + within.start, first + within.stop), range(head, head + 1)
