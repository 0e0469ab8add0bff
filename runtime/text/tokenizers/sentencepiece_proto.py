"""Just enough of SentencePiece's protobuf format to write a model from a vocabulary, and to load one.

Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto. The library itself has no way
to build a model from pieces, and the protobuf package is not worth a dependency for four fields.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sentencepiece import SentencePieceProcessor

from ...errors import UnsupportedModel

# Wire types, and the field numbers of ModelProto, SentencePiece, TrainerSpec and NormalizerSpec.
_VARINT, _BYTES, _FLOAT = 0, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_NAME, _DUMMY_PREFIX, _REMOVE_SPACES = 1, 3, 4
_BPE = 2
_BYTE = 6


def encode_model(spellings: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> bytes:
    """A serialized BPE model of these pieces: texts as they are, no normalization, no dummy prefix.

    types: SentencePiece's own numbers (1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte); exactly one
    piece is unknown. Bytes stand in for characters without a piece where all 256 byte pieces are there.
    """
    parts = []
    for spelling, score, kind in zip(spellings, scores, types, strict=True):
        text = spelling.encode("utf-8")
        piece = b"\x0a" + _varint(len(text)) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
        parts.append(b"\x0a" + _varint(len(piece)) + piece)
    byte_fallback = sum(kind == _BYTE for kind in types) == 256
    parts.append(_message(_TRAINER, _number(_MODEL_TYPE, _BPE) + _number(_BYTE_FALLBACK, byte_fallback)))
    normalizer = _message(_NAME, b"identity") + _number(_DUMMY_PREFIX, False) + _number(_REMOVE_SPACES, False)
    parts.append(_message(_NORMALIZER, normalizer))
    return b"".join(parts)


def load_processor(model: bytes) -> SentencePieceProcessor:
    """The library's processor for a serialized model; raises UnsupportedModel where it cannot read it."""
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise UnsupportedModel(f"the SentencePiece library cannot read the model: {error}") from error
    return processor


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(int(value))


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content
