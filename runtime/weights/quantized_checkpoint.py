"""A Hugging Face directory whose matrices are quantized: it looks like one of plain matrices, dequantized when read.

A quantized matrix goes by the name that a plain one would have, `MODULE.weight`; the tensors that it is made of are
checked when the directory is opened and are not among the names. See `quantized` for what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..errors import ModelError, UnsupportedModel
from .checkpoint import Checkpoint
from .quantization import BLOCK, Float8Scheme, Int4Scheme, Scheme
from .quantized import NIBBLES, QuantizedMatrix, unpacked
from .safetensors import DTYPES, SafetensorsCheckpoint

PIECE_ELEMENTS = 1 << 18  # dequantized at one time: 1 MiB of float32
STORED_TYPES = {"I32": torch.int32, "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn}
CPU = torch.device("cpu")
FLOATS = tuple(DTYPES.values())
INTEGERS = (torch.int32, torch.int64)
MAIN = {"gptq": "qweight", "awq": "qweight", "packed": "weight_packed"}


@dataclass
class _Module:
    """A quantized matrix: its name, shape, and by what follows the module's name, the tensors that it is made of."""

    name: str
    shape: tuple[int, int]
    tensors: dict[str, str] = field(default_factory=dict)


class QuantizedCheckpoint(Checkpoint):
    """The tensors of a directory, with its quantized matrices as `scheme` says.

    matrices: the names of those.
    """

    def __init__(self, directory: Path, scheme: Scheme) -> None:
        """Checks every tensor's shape and type. Raises ModelError, or UnsupportedModel, naming the tensor."""
        self.scheme = scheme
        self._files = SafetensorsCheckpoint(directory, STORED_TYPES)
        self.source, self.nbytes = self._files.source, self._files.nbytes
        self._plain = set(self._files.names())
        self._modules = {module.name: module for module in map(self._module, self._mains())}
        for name in sorted(self._plain):
            if self._files.dtype(name) not in FLOATS:
                raise UnsupportedModel(
                    f"the tensor {name!r} has type {self._files.dtype(name)}, and is no part of a matrix quantized by "
                    f"{scheme.method}"
                )

    @property
    def matrices(self) -> Iterable[str]:
        return self._modules.keys()

    def names(self) -> Iterable[str]:
        return [*self._plain, *self._modules]

    def shape(self, name: str) -> tuple[int, ...]:
        module = self._modules.get(name)
        return self._files.shape(name) if module is None else module.shape

    def dtype(self, name: str) -> torch.dtype:
        return torch.float32 if name in self._modules else self._files.dtype(name)

    def read_into(self, name: str, out: Tensor) -> None:
        if name not in self._modules:
            self._files.read_into(name, out)
            return
        n, k = self._modules[name].shape
        self.read_part(name, out.view(n, k), range(n), range(k))

    def read_part(self, name: str, out: Tensor, rows: range, columns: range) -> None:
        if name not in self._modules:
            self._files.read_part(name, out, rows, columns)
            return
        k = self._modules[name].shape[1]
        step = max(NIBBLES, PIECE_ELEMENTS // k // NIBBLES * NIBBLES)
        for first in range(0, len(rows), step):
            piece = rows[first : first + step]
            out[first : first + len(piece)] = self.matrix(name, piece).part(columns).dequantized()

    def matrix(self, name: str, rows: range, device: torch.device = CPU) -> QuantizedMatrix:
        """Some consecutive rows of one of `matrices`, unpacked on `device`. Raises ModelError."""
        module = self._modules[name]
        try:
            tensors = {part: self._files.mapped(stored).to(device) for part, stored in module.tensors.items()}
            return unpacked(self.scheme, tensors, rows)
        except ModelError as error:
            raise ModelError(f"{self.source}: {name!r}: {error}") from None

    def empty_biases(self, names: Iterable[str]) -> set[str]:
        """Which of `names` are biases of quantized matrices that are all zero: AutoGPTQ gave one to each."""
        of_matrices = {f"{name.removesuffix('weight')}bias" for name in self._modules}
        return {name for name in names if name in of_matrices and not self.read(name).any()}

    # --- what there must be -------------------------------------------------------------------------------------------

    def _mains(self) -> list[str]:
        """The tensors that have the weights, a matrix each."""
        if isinstance(self.scheme, Int4Scheme):
            ending = f".{MAIN[self.scheme.layout]}"
            return sorted(name for name in self._plain if name.endswith(ending))
        eight_bits = (name for name in self._plain if self._files.dtype(name) == torch.float8_e4m3fn)
        return sorted(name for name in eight_bits if name.endswith(".weight"))

    def _module(self, main: str) -> _Module:
        base, _, part = main.rpartition(".")
        if self.scheme.skips(base):
            raise ModelError(f"{self.source}: {base!r} is quantized, which config.json says it is not")
        if len(self._files.shape(main)) != 2:
            raise ModelError(
                f"{self.source}: the tensor {main!r} has shape {self._files.shape(main)}, and is no matrix"
            )
        found = self._int4(base, part) if isinstance(self.scheme, Int4Scheme) else self._float8(base)
        self._plain -= set(found.tensors.values())
        if found.name in self._plain:
            raise ModelError(f"{self.source} holds both {main!r} and {found.name!r}; only one can be the matrix")
        return found

    def _int4(self, base: str, part: str) -> _Module:
        scheme = self.scheme
        assert isinstance(scheme, Int4Scheme)
        first, second = self._files.shape(f"{base}.{part}")
        if scheme.layout == "gptq":
            n, k = second, first * NIBBLES
        else:
            n, k = (second * NIBBLES, first) if scheme.layout == "awq" else (first, second * NIBBLES)
        size = k if scheme.group_size == -1 else scheme.group_size
        if not n or not k or k % size or n % NIBBLES:
            raise ModelError(
                f"{self.source}: the tensor {f'{base}.{part}'!r} makes a matrix of {n} by {k}, whose columns do not "
                f"divide into groups of {size}, or rows into words of {NIBBLES}"
            )
        groups, words = k // size, n // NIBBLES
        module = _Module(f"{base}.weight", (n, k))
        if scheme.layout == "packed":
            self._take(module, part, INTEGERS[:1], [(n, k // NIBBLES)])
            self._take(module, "weight_scale", FLOATS, [(n, groups)])
            if scheme.has_zeros:
                self._take(module, "weight_zero_point", INTEGERS[:1], [(words, groups)])
            if scheme.ordered:
                self._take(module, "weight_g_idx", INTEGERS, [(k,)])
            self._take_shape(module)
            return module
        self._take(module, part, INTEGERS[:1], [(first, second)])
        self._take(module, "qzeros", INTEGERS[:1], [(groups, words)])
        self._take(module, "scales", FLOATS, [(groups, n)])
        if scheme.layout == "gptq" and (scheme.ordered or f"{base}.g_idx" in self._plain):
            self._take(module, "g_idx", INTEGERS, [(k,)])
        return module

    def _float8(self, base: str) -> _Module:
        scheme = self.scheme
        assert isinstance(scheme, Float8Scheme)
        n, k = self._files.shape(f"{base}.weight")
        module = _Module(f"{base}.weight", (n, k), {"weight": f"{base}.weight"})
        shapes = {
            "tensor": [(), (1,)],
            "channel": [(n, 1)],
            "block": [(-(-n // BLOCK), -(-k // BLOCK))],
        }
        name = next((name for name in scheme.scales if f"{base}.{name}" in self._plain), scheme.scales[0])
        self._take(module, name, FLOATS, shapes[scheme.per])
        module.tensors["scales"] = module.tensors.pop(name)
        return module

    def _take(
        self, module: _Module, part: str, dtypes: Sequence[torch.dtype], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        """Makes a tensor a part of a module. Raises ModelError where it is missing, of another shape or type."""
        name = f"{module.name.removesuffix('weight')}{part}"
        if name not in self._plain:
            raise ModelError(f"{self.source} lacks the tensor {name!r}, which {self.scheme} needs")
        shape, dtype = self._files.shape(name), self._files.dtype(name)
        if shape not in shapes or dtype not in dtypes:
            raise ModelError(
                f"{self.source}: the tensor {name!r} has shape {shape} and type {dtype}, expected "
                f"{' or '.join(map(str, shapes))} and {' or '.join(map(str, dtypes))}"
            )
        module.tensors[part] = name

    def _take_shape(self, module: _Module) -> None:
        """compressed-tensors' own word on the shape, where there is one: words that are padded are refused."""
        base = module.name.removesuffix("weight")
        if f"{base}weight_shape" not in self._plain:
            return
        self._take(module, "weight_shape", INTEGERS, [(2,)])
        stored = tuple(self._files.mapped(module.tensors["weight_shape"]).tolist())
        if stored != module.shape:
            raise ModelError(f"{self.source}: {base}weight_shape says {stored}, and weight_packed has {module.shape}")
