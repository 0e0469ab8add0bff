"""The processes that compute one model together, each a part of it (see `model.shard`), and what they exchange.

Every rank must make the same calls in the same order. Tokens are chosen by the first rank alone; the others are told.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..errors import RankLost
from ..model.shard import cut

PATIENCE = timedelta(minutes=10)  # ranks that load a large model from a slow disk do not finish at the same time


class Ranks:
    """One rank that has the whole model; the base of several. rank: this one's number. size: how many there are."""

    rank = 0
    size = 1

    @property
    def leads(self) -> bool:
        """Whether this is the first rank, which chooses tokens."""
        return self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, of one shape, in every rank. x itself may be overwritten."""
        return x

    def join_columns(self, x: Tensor, total: int) -> Tensor:
        """[rows, total] in the first rank, from every rank's x: the columns cut(total, size)[rank]; else [0, total]."""
        return x

    def spread(self, x: Tensor) -> Tensor:
        """The first rank's x, in every rank, of one shape in all. x itself may be overwritten."""
        return x

    def told_by_first(self, values: list[int]) -> list[int]:
        """The first rank's values, in every rank; all must give equally many."""
        return values

    def total(self, value: int) -> int:
        """The sum of all ranks' values."""
        return value

    def least(self, value: int) -> int:
        """The least of all ranks' values."""
        return value


ALONE = Ranks()


class ProcessRanks(Ranks):
    """Ranks in a process group of torch. Raises RankLost from every exchange once another rank is gone."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """device: where the model's tensors are."""
        self.rank, self.size = group.rank(), group.size()
        self._group = group
        self._device = device

    def sum(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._finish(lambda: self._group.allreduce([x]))
        return x

    def join_columns(self, x: Tensor, total: int) -> Tensor:
        widths = [len(run) for run in cut(total, self.size)]
        own = F.pad(x, (0, widths[0] - x.shape[1]))  # a gather needs equal shapes
        options = dist.GatherOptions()
        options.rootRank = 0
        parts = [torch.empty_like(own) for _ in widths] if self.leads else []
        self._finish(lambda: self._group.gather([parts] if parts else [], [own], options))
        if not parts:
            return x.new_empty(0, total)
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    def spread(self, x: Tensor) -> Tensor:
        self._finish(lambda: self._group.broadcast([x]))
        return x

    def told_by_first(self, values: list[int]) -> list[int]:
        return self.spread(torch.tensor(values, dtype=torch.int64, device=self._device)).tolist()

    def total(self, value: int) -> int:
        return self._reduced(value, dist.ReduceOp.SUM)

    def least(self, value: int) -> int:
        return self._reduced(value, dist.ReduceOp.MIN)

    def _reduced(self, value: int, operation: dist.ReduceOp.RedOpType) -> int:
        tensor = torch.tensor([value], dtype=torch.int64, device=self._device)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(operation)
        self._finish(lambda: self._group.allreduce([tensor], options))
        return int(tensor.item())

    def _finish(self, exchange: Callable[[], dist.Work]) -> None:
        try:
            exchange().wait()
        except RuntimeError as error:
            reason = str(error).partition(". ")[0]  # advice follows
            raise RankLost(f"rank {self.rank} lost another rank: {reason}") from error


def join_ranks(rank: int, size: int, rendezvous: str, device: torch.device) -> Ranks:
    """This process's place among `size` ranks on this machine; waits for all of them.

    rendezvous: an init_method of torch.distributed, the same for all. NCCL joins GPUs, gloo everything else; their
    sockets, which ask nobody for a key, listen on the loopback interface only, unless the user's environment says
    otherwise. Raises RankLost where another rank does not come.
    """
    if size == 1:
        return ALONE
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=size, timeout=PATIENCE)
    except RuntimeError as error:
        raise RankLost(f"rank {rank} could not join the others: {error}") from error
    group = dist.group.WORLD
    assert group is not None
    return ProcessRanks(group, device)
