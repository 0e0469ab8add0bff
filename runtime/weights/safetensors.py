"""Reads the weights of a Hugging Face directory: one safetensors file, or shards under an index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ModelError, UnsupportedModel
from .checkpoint import Checkpoint

INDEX = "model.safetensors.index.json"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class SafetensorsCheckpoint(Checkpoint):
    """The tensors of all shards. Data stays in the memory-mapped files until it is read."""

    def __init__(self, directory: Path, more_types: Mapping[str, torch.dtype] = MappingProxyType({})) -> None:
        """Opens every shard and checks names and types. Raises ModelError, or UnsupportedModel for a tensor's type.

        more_types: those that tensors may have beside DTYPES, by the names that safetensors gives them.
        """
        self.source = str(directory)
        self._types = DTYPES | dict(more_types)
        self._shards: dict[str, safe_open] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self.nbytes = 0
        for file_name, promised in _shard_files(directory).items():
            self._add(directory / file_name, promised)

    def names(self) -> Iterable[str]:
        return self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return self._dtypes[name]

    def read_into(self, name: str, out: torch.Tensor) -> None:
        try:
            out.copy_(self._shards[name].get_tensor(name).view(out.shape))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read the tensor {name!r} of {self.source}: {error}") from error

    def read_part(self, name: str, out: torch.Tensor, rows: range, columns: range) -> None:
        try:
            part, shape = self._shards[name].get_slice(name), self._shapes[name]
            if len(shape) == 1:
                out.copy_(part[rows.start : rows.stop])
            elif len(shape) == 2:
                out.copy_(part[rows.start : rows.stop, columns.start : columns.stop])
            else:
                for matrix, some, place in _by_matrix(rows, shape[1]):
                    out[place].copy_(part[matrix, some, columns.start : columns.stop])
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read the tensor {name!r} of {self.source}: {error}") from error

    def mapped(self, name: str) -> torch.Tensor:
        """The tensor as it is stored, on the file's memory where that is mapped: not to be written to."""
        try:
            return self._shards[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read the tensor {name!r} of {self.source}: {error}") from error

    def _add(self, path: Path, promised: set[str] | None) -> None:
        try:
            shard = safe_open(path, framework="pt", device="cpu")
            names = list(shard.keys())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read {path}: {error}; the download may be incomplete") from error
        if promised is not None and promised != set(names):
            odd = sorted(promised.symmetric_difference(names))[0]
            raise ModelError(f"{path.name} and {INDEX} do not agree on the tensor {odd!r}")
        for name in names:
            if name in self._shards:
                raise ModelError(f"{self.source} holds the tensor {name!r} twice")
            view = shard.get_slice(name)
            dtype = view.get_dtype()
            if dtype not in self._types:
                raise UnsupportedModel(
                    f"the tensor {name!r} of {path.name} has type {dtype}; supported types are {', '.join(self._types)}"
                )
            self._shards[name] = shard
            self._dtypes[name] = self._types[dtype]
            self._shapes[name] = tuple(view.get_shape())
            self.nbytes += torch.Size(view.get_shape()).numel() * self._types[dtype].itemsize


def _by_matrix(rows: range, height: int) -> Iterator[tuple[int, slice, slice]]:
    """Rows counted through a stack of matrices: each matrix that has some, which of its own they are, and which of
    `rows`."""
    for matrix in range(rows.start // height, -(-rows.stop // height)):
        first = matrix * height
        start, stop = max(rows.start, first), min(rows.stop, first + height)
        yield matrix, slice(start - first, stop - first), slice(start - rows.start, stop - rows.start)


def _shard_files(directory: Path) -> dict[str, set[str] | None]:
    """File name -> the tensors that the index says it has (None where there is no index)."""
    index = directory / INDEX
    if not index.exists():
        files = sorted(file.name for file in directory.glob("*.safetensors"))
        if len(files) != 1:
            found = ", ".join(files) if files else "none"
            raise ModelError(f"{directory} needs one .safetensors file, or {INDEX} beside several; found: {found}")
        return {files[0]: None}
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards: dict[str, set[str] | None] = {}
        for name, file_name in weight_map.items():
            if Path(file_name).name != file_name:
                raise ModelError(f"{index} names a file outside its directory: {file_name!r}")
            promised = shards.setdefault(file_name, set())
            assert promised is not None
            promised.add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"cannot read {index}: {type(error).__name__}: {error}") from error
    return shards
