"""Grammars are loaded beside the steps; what goes wrong with one is said, and never ends the worker."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest

from sapwood.constrained.spec import Compiled
from sapwood.managers.wire.grammars import GrammarReady
from sapwood.managers.worker.grammar_loader import FailedStart, GrammarLoader
from sapwood.runtime.records import pack_ids
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.step import OpenRow


class Panic(BaseException):
    """As what pyo3 raises for a panic in Rust."""


class Completion:
    def __init__(self, key: str) -> None:
        self.key = key
        self.replayed: list[int] = []

    def replay(self, token_ids: list[int]) -> None:
        if self.key == "replay":
            raise Panic("wormwood")
        self.replayed = token_ids


class Shared:
    """In place of the loader that all grammars share: some keys go wrong."""

    def __init__(self) -> None:
        self.loads: list[str] = []

    def load(self, grammar: Compiled) -> Any:
        self.loads.append(grammar.key)
        if grammar.key == "load":
            raise Panic("wormwood")
        return self if grammar.key != "start" else object()

    def start(self, *, jump_forward: bool) -> Completion:
        return Completion(self.loads[-1])


@pytest.fixture
def answers() -> queue.Queue[GrammarReady]:
    return queue.Queue()


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def loader(answers: queue.Queue[GrammarReady], shared: Shared, monkeypatch: pytest.MonkeyPatch) -> GrammarLoader:
    class Box:
        send = staticmethod(answers.put)

    box: Any = Box()
    monkeypatch.setattr(GrammarLoader, "_shared", lambda _: shared)
    return GrammarLoader("", jump_forward=True, answers=lambda: box)


def row(key: str, output: list[int] | None = None) -> OpenRow:
    return OpenRow(0, Sampling(max_tokens=5, seed=1), [], pack_ids([1, 2]), pack_ids(output or []), grammar=key)


def grammar(key: str) -> Compiled:
    return Compiled(key, "llguidance", b"")


def test_a_grammar_is_loaded_once_until_it_is_forgotten(
    loader: GrammarLoader, shared: Shared, answers: queue.Queue[GrammarReady]
) -> None:
    for _ in range(2):
        loader.prepare(grammar("a"))
        assert answers.get(timeout=10) == GrammarReady("a")
    completion: Any = loader.start(row("a", [7, 8]))
    assert completion.replayed == [7, 8]
    loader.forget("a")
    loader.prepare(grammar("a"))
    assert answers.get(timeout=10) == GrammarReady("a")
    assert shared.loads == ["a", "a"]


def test_a_load_that_panics_is_answered_and_tried_again(
    loader: GrammarLoader, shared: Shared, answers: queue.Queue[GrammarReady]
) -> None:
    for _ in range(2):
        loader.prepare(grammar("load"))
        assert answers.get(timeout=10) == GrammarReady("load", "Panic: wormwood")
    assert shared.loads == ["load", "load"]
    loader.prepare(grammar("a"))
    assert answers.get(timeout=10) == GrammarReady("a")


@pytest.mark.parametrize(
    ("key", "output", "error"),
    [("start", [], AttributeError), ("replay", [3], Panic), ("nowhere", [], KeyError)],
)
def test_a_start_that_raises_is_told_to_who_samples(
    loader: GrammarLoader, answers: queue.Queue[GrammarReady], key: str, output: list[int], error: type
) -> None:
    if key != "nowhere":
        loader.prepare(grammar(key))
        answers.get(timeout=10)
    started = loader.start(row(key, output))
    assert isinstance(started, FailedStart)
    with pytest.raises(error):
        started.fill(np.zeros(2, np.int32))
    with pytest.raises(error):
        started.advance(1)
