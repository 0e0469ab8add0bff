"""The kernel library as Python sees it: its structs, its functions with their types, and the threads it works on.

Everything unsafe about calling C is in this module: who passes arrays here gets an exception for a wrong one, never a
crash. It must not decide anything about models or requests.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

import numpy as np
import torch

from .build import LIBRARY

TYPES = {
    "F32": 0, "F16": 1, "BF16": 2, "Q4_0": 3, "Q4_1": 4, "Q5_0": 5, "Q5_1": 6, "Q8_0": 7,
    "Q4_K": 8, "Q5_K": 9, "Q6_K": 10,
}  # fmt: skip
ALIGN_BYTES = 64
SPARE_BYTES = 64  # readable past a matrix: a vector load may begin before its end and reach over it

_STATUS = {
    1: "a token id is outside of the vocabulary",
    2: "a slot is outside of the KV pool",
    3: "the step's index arrays do not fit together",
    4: "the entries of a group do not share the slots that the group names",
}
_NO_MEMORY = 5


class Matrix(Structure):
    """SwMatrix: a packed matrix of n output features by k input features."""

    _fields_ = [("type", c_int32), ("reserved", c_int32), ("n", c_int64), ("k", c_int64), ("data", c_void_p)]


class Layer(Structure):
    """SwLayer: one decoder layer, and its part of the KV pool."""

    _fields_ = [
        ("attn_norm", c_void_p), ("q", Matrix), ("k", Matrix), ("v", Matrix), ("qkv_bias", c_void_p), ("out", Matrix),
        ("mlp_norm", c_void_p), ("gate", Matrix), ("up", Matrix), ("down", Matrix),
        ("keys", c_void_p), ("values", c_void_p),
    ]  # fmt: skip


class SwModel(Structure):
    """SwModel: sizes, and where the weights are."""

    _fields_ = [
        ("layers", c_int32), ("heads", c_int32), ("kv_heads", c_int32), ("head_dim", c_int32), ("width", c_int32),
        ("inner", c_int32), ("vocab", c_int32), ("kv_type", c_int32), ("slots", c_int64), ("rms_eps", c_float),
        ("reserved", c_int32), ("rope_frequencies", c_void_p), ("norm", c_void_p), ("embed", Matrix), ("head", Matrix),
        ("layer", POINTER(Layer)),
    ]  # fmt: skip


class Step(Structure):
    """SwStep: one step's arrays."""

    _fields_ = [
        ("tokens", c_int32), ("entries", c_int32), ("token_ids", c_void_p), ("positions", c_void_p),
        ("slots", c_void_p), ("qo_indptr", c_void_p), ("kv_indptr", c_void_p), ("kv_indices", c_void_p),
        ("groups", c_int32), ("outputs", c_int32), ("group_indptr", c_void_p), ("group_entries", c_void_p),
        ("group_lengths", c_void_p), ("output_rows", c_void_p), ("hidden", c_void_p),
    ]  # fmt: skip


_C_TYPES = {"uint64_t": c_uint64, "int64_t": c_int64, "double": c_double}


class KernelsMissing(Exception):
    """There is no kernel library here, or none that this machine can run; the message says why."""


def library_path() -> Path:
    """Where the library is, if it was built."""
    return Path(__file__).with_name(LIBRARY)


class Library:
    """The loaded library, working on the threads of torch's OpenMP runtime."""

    def __init__(self, path: Path) -> None:
        """Raises KernelsMissing."""
        try:
            self._lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise KernelsMissing(f"the kernel library cannot be loaded: {error}") from error
        self._declare()
        name = self._lib.sw_isa()
        if name is None:
            wanted = os.environ.get("SAPWOOD_KERNEL_ISA")
            raise KernelsMissing(f"the kernel library has no instruction set {wanted!r} that this machine runs")
        self.isa: str = name.decode()
        parallel, count = _torch_openmp()
        self._lib.sw_set_runtime(parallel, count)

    def _declare(self) -> None:
        lib = self._lib
        declarations = {
            "sw_isa": (c_char_p, []),
            "sw_isa_for": (c_char_p, [c_char_p]),
            "sw_set_runtime": (None, [c_void_p, c_void_p]),
            "sw_workspace_new": (c_void_p, [c_int32]),
            "sw_workspace_free": (None, [c_void_p]),
            "sw_packed_bytes": (c_int64, [c_int32, c_int64, c_int64]),
            "sw_row_bytes": (c_int64, [c_int32, c_int64]),
            "sw_pack": (None, [c_void_p, c_int32, c_int64, c_int64, c_void_p, c_void_p]),
            "sw_linear": (c_int32, [c_void_p, POINTER(Matrix), c_void_p, c_int64, c_void_p, c_void_p]),
            "sw_attention": (c_int32, [c_void_p, POINTER(SwModel), c_int32, POINTER(Step), c_void_p, c_void_p]),
            "sw_forward": (c_int32, [c_void_p, POINTER(SwModel), POINTER(Step)]),
            "sw_logits": (c_int32, [c_void_p, POINTER(SwModel), c_void_p, c_int64, c_void_p]),
            "sw_sampling_fields": (c_char_p, []),
            "sw_choose": (c_int32, [c_void_p, c_void_p, c_int64, c_int64, *[c_void_p] * 5]),
        }
        for name, (result, arguments) in declarations.items():
            function = getattr(lib, name, None)
            if function is None:
                raise KernelsMissing(f"the kernel library is of another version: it lacks {name}; build it again")
            function.restype, function.argtypes = result, arguments

    def isa_for(self, features: Iterable[str]) -> str:
        """The best instruction set here for a machine with such features, by Linux's names ("avx2", "f16c", …)."""
        return self._lib.sw_isa_for(" ".join(features).encode()).decode()

    def workspace(self, threads: int) -> Workspace:
        """Memory and threads to compute with; for one caller at a time."""
        return Workspace(self._lib, threads)

    def sampling_struct(self) -> type[Structure]:
        """SwSampling, as the library was built: how one row's tokens are chosen. Pointers are addresses."""
        pairs = [field.rpartition(" ") for field in self._lib.sw_sampling_fields().decode().split(";") if field]
        fields = [(name, _C_TYPES.get(kind, c_void_p)) for kind, _, name in pairs]
        return type("SwSampling", (Structure,), {"_fields_": fields})

    def row_bytes(self, type_name: str, k: int) -> int:
        """Bytes of a stored row of k values. Raises ValueError where the type has no such rows."""
        size = self._lib.sw_row_bytes(TYPES[type_name], k)
        if size < 0:
            raise ValueError(f"a row of {k} values does not divide into {type_name} blocks")
        return size

    def packed_bytes(self, type_name: str, n: int, k: int) -> int:
        """Bytes of a packed matrix. Raises ValueError where the type cannot have that k."""
        size = self._lib.sw_packed_bytes(TYPES[type_name], n, k)
        if size < 0:
            raise ValueError(f"a matrix of {n} rows of {k} values cannot be packed as {type_name}")
        return size


class Workspace:
    """Scratch memory of the kernels and the number of threads they use. Not for use from several threads at once."""

    def __init__(self, lib: ctypes.CDLL, threads: int) -> None:
        self._lib = lib
        self.threads = threads
        self._handle = lib.sw_workspace_new(threads)
        if not self._handle:
            raise MemoryError("no memory for the kernels' workspace")

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._lib.sw_workspace_free(handle)

    def pack(self, type_name: str, n: int, k: int, rows: np.ndarray, out: np.ndarray) -> None:
        """rows: uint64 [n], the address of each stored row, in the order wanted. out: uint8, `packed_bytes` of them."""
        assert rows.dtype == np.uint64
        assert rows.shape == (n,)
        assert out.dtype == np.uint8
        assert out.size >= self._lib.sw_packed_bytes(TYPES[type_name], n, k) > 0
        self._lib.sw_pack(self._handle, TYPES[type_name], n, k, address(rows), address(out))

    def linear(self, matrix: Matrix, x: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """x float32 [rows, k] -> float32 [rows, n]: x W^T + bias."""
        x = floats(x, (len(x), matrix.k))
        y = np.empty((len(x), matrix.n), np.float32)
        added = None if bias is None else address(floats(bias, (matrix.n,)))
        if len(x):
            self._lib.sw_linear(self._handle, matrix, address(x), len(x), added, address(y))
        return y

    def attention(self, model: SwModel, layer: int, step: Step, q: np.ndarray) -> np.ndarray:
        """q float32 [tokens, heads, head_dim], rotated -> attended values of the same shape."""
        if not 0 <= layer < model.layers:
            raise IndexError(f"layer {layer} of {model.layers}")
        q = floats(q, (step.tokens, model.heads, model.head_dim))
        out = np.empty_like(q)
        _check(self._lib.sw_attention(self._handle, model, layer, step, address(q), address(out)))
        return out

    def forward(self, model: SwModel, step: Step) -> None:
        """All layers of a step; fills the arrays that it names. Raises ValueError for a step that is not sound."""
        _check(self._lib.sw_forward(self._handle, model, step))

    def logits(self, model: SwModel, hidden: np.ndarray, out: np.ndarray) -> None:
        """hidden float32 [rows, width], normed -> out float32 [rows, vocab]."""
        hidden = floats(hidden, (len(hidden), model.width))
        assert out.shape == (len(hidden), model.vocab)
        assert out.dtype == np.float32
        assert out.flags.c_contiguous
        if len(hidden):
            self._lib.sw_logits(self._handle, model, address(hidden), len(hidden), address(out))

    def choose(
        self,
        logits: np.ndarray,
        options: Sequence[int],
        positions: np.ndarray,
        holds_back: bytes,
        bitmasks: np.ndarray | None,
    ) -> np.ndarray:
        """logits float32 [rows, vocab] -> tokens int64 [rows], -1 where there is none.

        options: the address of a `sampling_struct` for each row, whose ids must be in the vocabulary. positions [rows].
        holds_back: a byte for each row. bitmasks: 32-bit words [rows, ceil(vocab / 32)], or None.
        """
        rows, vocab = logits.shape
        logits = floats(logits, (rows, vocab))
        assert len(options) == len(positions) == len(holds_back) == rows
        positions = np.ascontiguousarray(positions, np.int64)
        if bitmasks is not None:
            assert bitmasks.shape == (rows, (vocab + 31) // 32)
            assert bitmasks.itemsize == 4
            bitmasks = np.ascontiguousarray(bitmasks)
        chosen = np.empty(rows, np.int64)
        _check(
            self._lib.sw_choose(
                self._handle,
                address(logits),
                rows,
                vocab,
                (c_void_p * rows)(*options),
                address(positions),
                holds_back,
                None if bitmasks is None else address(bitmasks),
                address(chosen),
            )
        )
        return chosen


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def floats(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array as contiguous float32. Raises ValueError where its shape is another."""
    if array.shape != shape:
        raise ValueError(f"an array of shape {array.shape}, expected {shape}")
    return np.ascontiguousarray(array, np.float32)


def ints(values: np.ndarray | Sequence[int]) -> np.ndarray:
    """The values as contiguous int32."""
    return np.ascontiguousarray(values, np.int32)


def _check(status: int) -> None:
    if status == _NO_MEMORY:
        raise MemoryError("no memory for the kernels' workspace")
    if status:
        raise ValueError(_STATUS.get(status, f"the kernels answered {status}"))


def _torch_openmp() -> tuple[int, int]:
    """The addresses of GOMP_parallel and omp_get_num_threads in the OpenMP runtime that torch works with.

    torch makes its runtime's symbols global; where it does not, the runtime is looked for among torch's own libraries
    and only taken if it is loaded already. LLVM's runtime has these names too. Raises KernelsMissing.
    """
    found = _openmp_in(ctypes.CDLL(None))
    package = Path(torch.__path__[0])
    folders = [package / "lib", package.parent / "torch.libs"]
    for folder in folders:
        for path in sorted(folder.glob("lib*omp*")):
            if found is not None:
                return found
            try:
                found = _openmp_in(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW))
            except OSError:
                continue
    if found is None:
        raise KernelsMissing("torch's OpenMP runtime was not found, so the kernels would have no threads")
    return found


def _openmp_in(library: ctypes.CDLL) -> tuple[int, int] | None:
    try:
        functions = library.GOMP_parallel, library.omp_get_num_threads
    except AttributeError:
        return None
    parallel, count = (ctypes.cast(function, c_void_p).value or 0 for function in functions)
    return parallel, count
