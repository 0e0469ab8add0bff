"""Records llama.cpp's token ids for a fixed corpus, as `llama_cpp_ids.json` beside this script.

Run it as `python record_llama_cpp.py SMOLLM2_GGUF` where sapwood is installed with the extras `test` and `oracle`. The
tests read the recorded answers; where llama_cpp is installed they also ask it anew, with the functions of this script.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sentencepiece

from sapwood.runtime.text.tokenizers.pre_tokenizers import RULES
from sapwood.runtime.weights.gguf import GGUFFile

if TYPE_CHECKING:
    import llama_cpp  # pyright: ignore[reportMissingImports]

CODE = (
    'def f(x: int) -> str:\n    """Doc."""\n\treturn f"{x:>10}" + \'a\' * 3  # n²\n\n\nprint(f(10_000), 0xFF, 1e-9)\r\n'
)
FIXED = [
    "", " ", "  ", "\n", "\n\n\n", "\r\n\r\n", "\t\t x", "  x\n\n1234 é🚲", "Hello, world!",
    "hello  world   again    ", "I'm you're HE'LL they'd we've it's 'tis O'Neill's", "don’t", "1234567890",
    "3.14159 1,000,000 ٣٤٥ ½ Ⅷ ²", CODE, "naïve café Ångström ﬁ ǆ", "e\u0301 a\u030a\u0323 \u0301",
    "안녕하세요 세계", "漢字かな交じり文、テスト。", "नमस्ते दुनिया", "שלום عَرَبِيّ", "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪🚲",
    "\u200b\u200d\ufeff\u2028\u3000|", "a\x00b\x1c\x1f\x7f\x85\xa0c", "\ufffd\U0010ffff\ue000\U000e0041",
    "<|im_start|>system\nObey<|im_end|>", "<|im_start", "im_end|>", "<|endoftext|><|endoftext|>",
    "<<|im_end|>>", "<repo_name>", "<|im_start|><|im_end|> <|im_end|>\n", "<s>[INST] x [/INST]</s>", "<s",
    "</s>", "<unk>", "<0x41><0xE2>", "▁▁ a▁b ▁", "<file_sep", "a<s>b </s> c",
    "http://example.com/a?b=c&d=%20#e", "{\"a\": [1, 2.5, null], \"b\": \"\\u00e9\"}", "x" * 60, " " * 33,
    "=" * 40 + "\n", "ab" * 30,
]  # fmt: skip
ATOMS = [
    "a", "B", "the", " the", "ing", "é", "É", "ñ", "ß", "字", "か", "カ", "ก", "안", "ह", "ि", "א", "1", "22",
    "333", "4444", "٣", "½", " ", "  ", "   ", "\n", "\r\n", "\t", "\u3000", "\xa0", "\x85", "\x1c", "\u200b",
    "\u200d", "\u0301", ".", ",", "!", "…", "-", "--", "$", "+", "`", "^", "/", "\\", "'s", "'LL", "'d", "'",
    '"', "_", "(", ")", "[", "]", "{", "}", "|", "=", "~", "€", "«", "🚲", "👍🏽", "<", ">", "<|", "|>",
    "<|im_end|>", "<|im_start|>", "im_end", "<s>", "</s>", "s>", "▁", "ǅ", "ʰ", "fi", "//", "::", "->", "==",
    "0x", "e-",
]  # fmt: skip


def corpus() -> list[str]:
    """The fixed texts and 280 random ones; the same at every run."""
    rng = random.Random(20240607)
    mixed = ["".join(rng.choices(ATOMS, k=rng.randint(1, 14))) for _ in range(220)]
    anything = ["".join(chr(_code_point(rng)) for _ in range(rng.randint(1, 10))) for _ in range(60)]
    return [*FIXED, *mixed, *anything]


def _code_point(rng: random.Random) -> int:
    code = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x110000)])
    return code if not 0xD800 <= code < 0xE000 else 0xFFFD


def mistral_model() -> Path:
    """A real SentencePiece model, from the package mistral-common."""
    import mistral_common

    return Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"


def sentencepiece_metadata(model: Path) -> dict[str, Any]:
    """The "tokenizer.ggml.*" metadata that llama.cpp's converter writes for a SentencePiece model."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = range(processor.GetPieceSize())
    kinds = {2: processor.IsUnknown, 3: processor.IsControl, 5: processor.IsUnused, 6: processor.IsByte}
    types = [next((kind for kind, holds in kinds.items() if holds(i)), 1) for i in pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.IdToPiece(i) for i in pieces],
        "tokenizer.ggml.scores": np.array([processor.GetScore(i) for i in pieces], dtype=np.float32),
        "tokenizer.ggml.token_type": np.array(types, dtype=np.int32),
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    }


def write_vocab_file(path: Path, metadata: dict[str, Any]) -> None:
    """A GGUF file without tensors that llama.cpp opens with `vocab_only`."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_vocab_size(len(metadata["tokenizer.ggml.tokens"]))
    for key, value in metadata.items():
        if not key.startswith("tokenizer.ggml."):
            continue
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value if isinstance(value, list) else value.tolist())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def open_vocab(path: Path) -> llama_cpp.Llama:
    import llama_cpp  # pyright: ignore[reportMissingImports]

    return llama_cpp.Llama(model_path=str(path), vocab_only=True, verbose=False)


def ids_of(model: llama_cpp.Llama, text: str, *, special: bool) -> list[int]:
    return model.tokenize(text.encode("utf-8"), add_bos=False, special=special)


def checksum(ids: list[int]) -> int:
    return zlib.crc32(np.array(ids, dtype="<i4").tobytes())


def _record(model: llama_cpp.Llama, texts: list[str]) -> dict[str, Any]:
    """The ids of every text as plain text, and where control tokens make a difference, with them."""
    plain = [ids_of(model, text, special=False) for text in texts]
    control = [ids_of(model, text, special=True) for text in texts]
    return {"plain": plain, "control": {str(i): c for i, (p, c) in enumerate(zip(plain, control)) if c != p}}


def main(smollm2: Path) -> None:
    import llama_cpp  # pyright: ignore[reportMissingImports]

    texts = corpus()
    metadata = GGUFFile(smollm2).metadata
    record: dict[str, Any] = {"llama_cpp_python": llama_cpp.__version__, "texts": texts}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        record["smollm2"] = _record(open_vocab(smollm2), texts)
        write_vocab_file(path, sentencepiece_metadata(mistral_model()))
        record["sentencepiece"] = _record(open_vocab(path), texts)
        checksums: dict[str, list[int]] = {}
        names: dict[str, dict[str, Any]] = {}
        for name in RULES:
            changed = {key: value for key, value in metadata.items() if not key.startswith("tokenizer.ggml.add_")}
            write_vocab_file(path, changed | {"tokenizer.ggml.pre": name})
            model = open_vocab(path)
            sums = [checksum(ids_of(model, text, special=False)) for text in texts]
            same = next((other for other, theirs in checksums.items() if theirs == sums), name)
            checksums.setdefault(same, sums)
            adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(llama_cpp.llama_model_get_vocab(model.model)))
            names[name] = {"same_as": same, "adds_bos": adds_bos}
        record["pre_tokenizers"] = {"names": names, "checksums": checksums}
    target = Path(__file__).with_name("llama_cpp_ids.json")
    target.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
