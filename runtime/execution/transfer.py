"""Moves a step's arrays to the device, and its results back, without making the host wait for the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """The array as a tensor there. On a GPU the copy is ordered before whatever is launched on its stream later.

    It goes through page-locked memory, which torch does not give to others before the copy is done. On the CPU the
    tensor may share the array's memory.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def indices_to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Each array as int64 indices there, all in one copy."""
    joined = to_device(np.concatenate(arrays).astype(np.int64), device)
    return list(joined.split([len(array) for array in arrays]))


class Fetched:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        """Orders the copy behind what is launched on the tensor's stream already."""
        self._event: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))

    def is_there(self) -> bool:
        """Whether `wait` need not wait."""
        return self._event is None or self._event.query()

    def wait(self) -> np.ndarray:
        """Its values, once the device has come to them."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()
