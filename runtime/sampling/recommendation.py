"""How tokens are chosen where a request does not say: as the model's makers recommend.

A recommendation is found in a Hugging Face directory's `generation_config.json` or in a GGUF file's
`general.sampling.*` keys. It must import nothing heavy, and never refuse a model: what is no sensible number in a
recommendation is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ..declaration import declared
from .params import SamplingParams


class SamplingDefaults(msgspec.Struct, frozen=True, array_like=True):
    """source: whose they are, in a word or two. The others: as in SamplingParams; these values change nothing."""

    source: str
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def values(self) -> dict[str, Any]:
        """The sampling fields by name."""
        return {name: getattr(self, name) for name in DEFAULTED}

    def __str__(self) -> str:
        off = SamplingDefaults("")
        shown = [f"{n} {v:g}" for n, v in self.values().items() if n == "temperature" or v != getattr(off, n)]
        return ", ".join(shown)


DEFAULTED = SamplingDefaults.__struct_fields__[1:]
OPENAI_DEFAULTS = SamplingDefaults("openai")
FALLBACK = SamplingDefaults("sapwood", temperature=0.7, top_p=0.95, min_p=0.05)
"""Where a model recommends nothing: plain sampling of a small model's whole distribution is seldom readable."""

_GGUF = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
_CHOICE = ("temperature", "top_k", "top_p", "min_p")


def of_generation_config(config: Mapping[str, Any]) -> SamplingDefaults | None:
    """What a `generation_config.json` recommends; None where it says nothing of it. `do_sample` false is greedy."""
    greedy = {"temperature": 0.0} if config.get("do_sample") is False else {}
    return _recommended("generation_config.json", {**config, **greedy})


def of_gguf(metadata: Mapping[str, Any]) -> SamplingDefaults | None:
    """What a GGUF file's metadata recommend; None where they say nothing of sampling."""
    given = {name: metadata.get(f"general.sampling.{key}") for name, key in _GGUF.items()}
    return _recommended("general.sampling", given)


def _recommended(source: str, given: Mapping[str, Any]) -> SamplingDefaults | None:
    """A file that recommends only a repetition penalty leaves the rest to the fallback; one that says anything else of
    the choice means what it does not name to be off."""
    fields = {name: value for name in DEFAULTED if (value := _sensible(name, given.get(name))) is not None}
    if not fields:
        return None
    rest = {} if any(name in fields for name in _CHOICE) else FALLBACK.values()
    return SamplingDefaults(source, **{**rest, **fields})


def _sensible(name: str, value: Any) -> Any:
    """The value, where it is one that a request might have; None elsewhere."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    field = declared(SamplingParams)[name]
    if not (field.lowest or 0.0) <= value <= (field.highest or math.inf):
        return None
    return int(value) if name == "top_k" else float(value)
