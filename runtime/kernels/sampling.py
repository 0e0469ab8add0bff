"""Chooses tokens with the kernels, by the definition in `runtime/sampling/params.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from ..declaration import declared
from ..sampling.params import SamplingParams
from ..sampling.sampling_state import SamplingState
from .bindings import KernelsMissing, Library, Workspace, address, library_path

_STATE_FIELDS = ("counts", "in_prompt", "bias_ids", "bias", "biases", "stop_ids", "stops")


class NativeSampler:
    """The kernels' sampler. It works on every backend's logits. Not for use from several threads at once."""

    def __init__(self, library: Library, threads: int) -> None:
        """Raises KernelsMissing where the library was built for other sampling fields than are declared."""
        self._struct = library.sampling_struct()
        self._numbers = check_layout(SamplingParams, [name for name, *_ in self._struct._fields_])
        self._workspace: Workspace = library.workspace(threads)
        self._options: WeakKeyDictionary[SamplingState, Structure] = WeakKeyDictionary()

    def choose(
        self,
        logits: np.ndarray,
        states: Sequence[SamplingState],
        positions: np.ndarray,
        bitmasks: np.ndarray | None,
    ) -> np.ndarray:
        """Each row's token, int64 [rows], or -1 where there is none to choose; arguments as those of `sampler.sample`.

        Raises IndexError where a state names a token id outside of the vocabulary.
        """
        addresses = [ctypes.addressof(self._described(state, logits.shape[1])) for state in states]
        holds_back = bytes(state.holds_back_stop for state in states)
        return self._workspace.choose(logits, addresses, positions, holds_back, bitmasks)

    def _described(self, state: SamplingState, vocab: int) -> Structure:
        """The state's options as the kernels read them. They point to the state's arrays, which live as long as it."""
        found = self._options.get(state)
        if found is None:
            found = self._options[state] = self._describe(state, vocab)
        return found

    def _describe(self, state: SamplingState, vocab: int) -> Structure:
        for ids in (state.bias_ids, state.stop_ids):
            if len(ids) and not 0 <= ids.min() <= ids.max() < vocab:
                raise IndexError(f"a token id outside of the vocabulary of {vocab}")
        numbers = {name: getattr(state.options, name) for name in self._numbers}
        numbers["seed"] &= 0xFFFF_FFFF_FFFF_FFFF
        return self._struct(
            **numbers,
            counts=_array(state.counts, vocab),
            in_prompt=_array(state.in_prompt, vocab),
            bias_ids=address(state.bias_ids),
            bias=address(state.bias),
            biases=len(state.bias_ids),
            stop_ids=address(state.stop_ids),
            stops=len(state.stop_ids),
        )


def load_sampler(threads: int) -> NativeSampler | None:
    """The kernels' sampler on so many threads; None where there are no kernels (the runner's loading says why)."""
    try:
        return NativeSampler(Library(library_path()), threads)
    except KernelsMissing:
        return None


def check_layout(declaration: type[msgspec.Struct], built: Sequence[str]) -> list[str]:
    """The declared numbers that the kernels read. Raises KernelsMissing, naming what one side has alone."""
    numbers = [name for name, field in declared(declaration).items() if field.kernels]
    lacking = sorted({*numbers, *_STATE_FIELDS} - {*built})
    unknown = sorted({*built} - {*numbers, *_STATE_FIELDS})
    if lacking:
        text = f"the kernel library's sampling lacks {', '.join(lacking)}; add it to choose.cpp, or build it again"
        raise KernelsMissing(text)
    if unknown:
        raise KernelsMissing(f"the kernel library's sampling reads {', '.join(unknown)}, which nothing declares")
    return numbers


def _array(array: np.ndarray | None, vocab: int) -> int | None:
    if array is None:
        return None
    if array.shape != (vocab,):
        raise IndexError(f"a state for a vocabulary of {array.shape[0]}, the logits are over {vocab}")
    return address(array)
