"""GGUF files are read as the library writes them; a damaged or hostile one is refused with a sentence, cheaply."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.runtime.errors import ModelError, UnsupportedModel
from sapwood.runtime.weights.gguf import BLOCKS, GGUFFile

QUANTIZED = [name for name in BLOCKS if name not in ("F32", "F16")]


@pytest.fixture(scope="module")
def sample_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("a.uint32", 7)
    writer.add_int64("a.int64", -(2**40))
    writer.add_float32("a.float", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "é🚲\x00end")
    writer.add_array("a.strings", ["", "x", "안녕"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.25, -1.0])
    writer.add_tensor("matrix", np.arange(64 * 3, dtype=np.float32).reshape(3, 64))
    writer.add_tensor("half", np.linspace(-1, 1, 32, dtype=np.float16).reshape(2, 16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_come_back(sample_path: Path) -> None:
    file = GGUFFile(sample_path)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["a.uint32"] == 7
    assert file.metadata["a.int64"] == -(2**40)
    assert file.metadata["a.float"] == 0.5
    assert file.metadata["a.bool"] is True
    assert file.metadata["a.string"] == "é🚲\x00end"
    assert file.metadata["a.strings"] == ["", "x", "안녕"]
    assert file.metadata["a.ints"].tolist() == [1, -2, 3]
    assert file.metadata["a.floats"].tolist() == [0.25, -1.0]
    assert file.tensors["matrix"].shape == (3, 64)
    assert file.tensors["half"].type == "F16"
    np.testing.assert_array_equal(file.dequantized("matrix"), np.arange(192, dtype=np.float32).reshape(3, 64))
    np.testing.assert_array_equal(
        file.dequantized("half").ravel(), np.linspace(-1, 1, 32, dtype=np.float16).astype(np.float32)
    )
    with pytest.raises(ModelError, match="no tensor 'absent'"):
        file.raw("absent")


@pytest.mark.alone
def test_the_real_model_reads_as_the_library_reads_it(smollm2_path: Path) -> None:
    start = time.perf_counter()
    file = GGUFFile(smollm2_path)
    seconds = time.perf_counter() - start
    reader = gguf.GGUFReader(smollm2_path)
    assert seconds < 1.0, "about 0.05 s on an idle machine"
    assert set(file.metadata) == {key for key in reader.fields if not key.startswith("GGUF.")}
    for key, value in file.metadata.items():
        expected = reader.fields[key].contents()
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == expected, key
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        info = file.tensors[tensor.name]
        assert info.shape == tuple(tensor.shape[::-1])
        assert info.type == tensor.tensor_type.name
        assert np.array_equal(file.raw(tensor.name)[:64], tensor.data.reshape(-1).view(np.uint8)[:64])


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("rows", [1, 200])
def test_pieces_join_to_what_the_library_dequantizes_at_once(tmp_path: Path, name: str, rows: int) -> None:
    number = gguf.GGMLQuantizationType[name]
    elements, block_bytes = BLOCKS[name]
    row_bytes = 768 // elements * block_bytes
    data = np.random.default_rng(0).integers(0, 256, (rows, row_bytes)).astype(np.uint8)
    writer = gguf.GGUFWriter(str(tmp_path / "q.gguf"), "llama")
    writer.add_tensor("q", data, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "q.gguf")
    assert file.tensors["q"].shape == (rows, 768)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data, number)
        np.testing.assert_array_equal(file.dequantized("q"), expected)


# --- damaged and hostile files --------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def header(tensors: int, fields: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields)


def tensor(name: str, dims: tuple[int, ...], number: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset)


HUGE = 2**63
PAD = bytes(4096)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "empty"),
    "short": (b"GG", "not a GGUF file"),
    "text": (b"hello, this is not a model at all" * 5, "not a GGUF file"),
    "cut magic": (b"GGUF", "ends inside the version"),
    "version 1": (header(0, 0, 1), "GGUF version 1; versions 2 and 3 are read"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensor count": (header(HUGE, 0) + PAD, f"declares {HUGE} tensors"),
    "field count": (header(0, HUGE) + PAD, f"{HUGE} metadata fields"),
    "key length": (header(0, 1) + struct.pack("<Q", HUGE) + PAD, "ends inside a metadata key"),
    "string length": (header(0, 1) + text("k") + struct.pack("<IQ", 8, HUGE) + PAD, "ends inside metadata 'k'"),
    "string count": (header(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, HUGE) + PAD, "ends inside metadata 'k'"),
    "string in array": (
        header(0, 1) + text("k") + struct.pack("<IIQQ", 9, 8, 3, HUGE) + PAD,
        "ends inside metadata 'k'",
    ),
    "array count": (header(0, 1) + text("k") + struct.pack("<IIQ", 9, 4, HUGE) + PAD, "ends inside metadata 'k'"),
    "nested array": (header(0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1) + PAD, "array of arrays"),
    "value type": (header(0, 1) + text("k") + struct.pack("<I", 99) + PAD, "unknown value type 99"),
    "not UTF-8": (header(0, 1) + text("k") + struct.pack("<IQ", 8, 2) + b"\xff\xfe" + PAD, "not UTF-8"),
    "not UTF-8 in array": (header(0, 1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, 1) + b"\xff" + PAD, "not UTF-8"),
    "same key": (header(0, 2) + (text("k") + struct.pack("<II", 4, 1)) * 2 + PAD, "'k' appears twice"),
    "alignment": (header(0, 1) + text("general.alignment") + struct.pack("<II", 4, 0) + PAD, "general.alignment is 0"),
    "dimensions": (header(1, 0) + text("t") + struct.pack("<I", 2**31) + PAD, "2147483648 dimensions"),
    "zero size": (header(1, 0) + tensor("t", (0, 4), 0, 0) + PAD, "does not divide"),
    "huge size": (header(1, 0) + tensor("t", (HUGE, HUGE), 0, 0) + PAD, "ends at byte"),
    "offset": (header(1, 0) + tensor("t", (4,), 0, 2**62) + PAD, "ends at byte"),
    "unaligned": (header(1, 0) + tensor("t", (4,), 0, 3) + PAD, "not aligned"),
    "blocks": (header(1, 0) + tensor("t", (33,), 2, 0) + PAD, "does not divide into Q4_0 blocks"),
    "type": (header(1, 0) + tensor("t", (256,), 23, 0) + PAD, "type IQ4_XS, which is not supported; supported types"),
    "new type": (header(1, 0) + tensor("t", (256,), 4711, 0) + PAD, "type number 4711"),
    "same tensor": (header(2, 0) + tensor("t", (4,), 0, 0) * 2 + PAD, "'t' appears twice"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_with_a_sentence(tmp_path: Path, case: str) -> None:
    data, sentence = HOSTILE[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(ModelError, match=r"bad\.gguf") as caught:
        GGUFFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sentence in str(caught.value)
    assert peak < 1_000_000


@pytest.fixture(scope="module")
def refused_or_read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], GGUFFile | None]:
    path = tmp_path_factory.mktemp("damaged") / "damaged.gguf"

    def read(data: bytes) -> GGUFFile | None:
        path.write_bytes(data)
        try:
            return GGUFFile(path)
        except ModelError:
            return None

    return read


def test_every_truncation_is_refused(sample_path: Path, refused_or_read: Callable[[bytes], Any]) -> None:
    data = sample_path.read_bytes()
    needed = max(info.offset + info.nbytes for info in GGUFFile(sample_path).tensors.values())
    for size in range(0, needed, 3):
        assert refused_or_read(data[:size]) is None
    assert refused_or_read(data[:needed]) is not None


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_never_crash(
    sample_path: Path, refused_or_read: Callable[[bytes], GGUFFile | None], changes: list[tuple[int, int]]
) -> None:
    data = bytearray(sample_path.read_bytes())
    for place, value in changes:
        data[place] = value
    file = refused_or_read(bytes(data))
    if file is not None:
        for name, info in file.tensors.items():
            assert file.raw(name).size == info.nbytes
            assert file.dequantized(name).shape == info.shape


def test_a_missing_file_or_a_directory_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        GGUFFile(tmp_path / "absent.gguf")
    with pytest.raises(ModelError, match="directory"):
        GGUFFile(tmp_path)


def test_unsupported_is_told_apart_from_damaged(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(HOSTILE["type"][0])
    with pytest.raises(UnsupportedModel, match="Q4_K, Q5_K, Q6_K"):
        GGUFFile(path)
