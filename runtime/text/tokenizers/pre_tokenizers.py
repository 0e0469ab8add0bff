"""The pre-tokenizers of byte-level BPE vocabularies, under the names that GGUF files give them.

A name is listed only if its ids equal llama.cpp's on the recorded corpus in the tests; every other name is refused.
The patterns are the published ones of each model family, with "(?i:...)" written out as llama.cpp does.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from ...errors import UnsupportedModel

_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_SEED = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

# Words end where upper case follows lower case. llama.cpp takes only A-Z for upper and a-z for lower case.
_UPPER = r"(?:(?=\p{L})[^a-z])"
_LOWER = r"(?:(?=\p{L})[^A-Z])"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SLASHED}|{_SPACES}"
_GPT4O = rf"{_CASED[0]}(?:{_CONTRACTION})?|{_CASED[1]}(?:{_CONTRACTION})?|\p{{N}}{{1,3}}|{_SLASHED}|{_SPACES}"

# Unicode 16 made these punctuation; llama.cpp's tables are older.
_NOT_YET_PUNCTUATION = r"[^\x{1B4E}\x{1B4F}\x{1B7F}]"


@dataclass(frozen=True, slots=True)
class Rule:
    """How one family splits text, and what its vocabulary implies unless the file says otherwise.

    patterns: applied in turn, each to what the one before left; every match, and all text between matches, is a word.
    ignore_merges: a word that is a token is that token, whatever the merges say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


_FAMILIES: list[tuple[Rule, str]] = [
    (Rule((rf"[\p{{P}}$+<=>^~|&&{_NOT_YET_PUNCTUATION}]+", _GPT2, r"\p{N}+", r"[0-9]{3}")), "default"),
    (Rule((rf"[\p{{P}}$+<=>^~|`&&{_NOT_YET_PUNCTUATION}]+", _GPT2, r"[0-9]{3}")), "falcon"),
    (
        Rule((_GPT2,)),
        "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling",
    ),
    (Rule((r"\p{N}", _GPT2)), "smollm starcoder refact command-r codeshell exaone minerva-7b"),
    (
        Rule((_LLAMA3,), ignore_merges=True, adds_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (Rule((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (Rule((_QWEN2,)), "qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2"),
    (Rule((_QWEN35,)), "qwen35"),
    (Rule((_TEKKEN,), ignore_merges=True, adds_bos=True), "tekken"),
    (Rule((_GPT4O,)), "gpt-4o llama4 kanana2"),
    (Rule((_SEED,)), "seed-coder"),
    (Rule((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    (Rule((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (Rule((_BLOOM, r"\p{N}")), "viking"),
]

RULES: dict[str, Rule] = {name: rule for rule, names in _FAMILIES for name in names.split()}


def find_rule(name: str) -> Rule:
    """The rule that GGUF files call `name` ("tokenizer.ggml.pre"); raises UnsupportedModel for an unknown one."""
    rule = RULES.get(name)
    if rule is None:
        raise UnsupportedModel(f"unknown pre-tokenizer {name!r}; supported are {', '.join(sorted(RULES))}")
    return rule


def build(rule: Rule) -> PreTokenizer:
    """The rule as a pre-tokenizer of the `tokenizers` library, words spelled in the byte-level alphabet."""
    splits = [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
