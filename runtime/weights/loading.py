"""From a path to a checkpoint, of whichever kind is there."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelError
from .checkpoint import Checkpoint
from .gguf import GGUFFile
from .gguf_checkpoint import GGUFCheckpoint
from .quantization import scheme_of
from .quantized_checkpoint import QuantizedCheckpoint
from .safetensors import SafetensorsCheckpoint


def open_checkpoint(path: Path | str) -> Checkpoint:
    """The checkpoint at `path`, a `.gguf` file or a Hugging Face directory. Raises ModelError."""
    path = Path(path)
    if path.is_dir():
        scheme = scheme_of(path)
        return SafetensorsCheckpoint(path) if scheme is None else QuantizedCheckpoint(path, scheme)
    if not path.is_file():
        raise ModelError(f"there is no file or directory {path}")
    return GGUFCheckpoint(GGUFFile(path))
