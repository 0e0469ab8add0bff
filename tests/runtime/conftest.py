"""Drives an executor in the tests: keeps the books that the scheduler keeps in earnest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

if TYPE_CHECKING:
    from sapwood.runtime.executor import Executor
    from sapwood.runtime.launched import Launched
    from sapwood.runtime.step import StepOutput


@dataclass(frozen=True)
class Sampling:
    seed: int = 1
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None


@dataclass(frozen=True)
class Opening:
    row: int
    sampling: Sampling
    stop_ids: list[int]
    prompt_ids: bytes
    output_ids: bytes
    score_start: int | None
    score_top: int


@dataclass(frozen=True)
class SlotWrite:
    row: int
    start: int
    slots: bytes


@dataclass(frozen=True)
class Plan:
    poison: bytes
    closed: list[int]
    opened: list[Opening]
    slot_writes: list[SlotWrite]
    rows: bytes
    starts: bytes
    lengths: bytes
    token_ids: bytes
    slots: bytes
    sample: bytes
    speculated: bytes = b""
    shared: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Entry:
    """`ids` of a row to compute next, the last `speculated` of them guesses; their slots are new ones unless given."""

    row: int
    ids: Sequence[int]
    start: int
    sample: bool = True
    speculated: int = 0
    slots: Sequence[int] | None = None


def pack(values: Any) -> bytes:
    return np.ascontiguousarray(values, dtype="<i4").tobytes()


class Driver:
    """An executor with free slots in shuffled order. What is opened, closed, … goes out with the next step."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.free = list(np.random.default_rng(0).permutation(executor.pool.slots))
        self._opened: list[Opening] = []
        self._guides: dict[int, Any] = {}
        self._closed: list[int] = []
        self._writes: list[SlotWrite] = []

    def open(
        self,
        row: int,
        prompt: Sequence[int],
        *,
        output: Sequence[int] = (),
        stop_ids: Sequence[int] = (),
        score_start: int | None = None,
        score_top: int = 0,
        guide: Any = None,
        **sampling: Any,
    ) -> None:
        options = Sampling(**sampling)
        opening = Opening(row, options, list(stop_ids), pack(prompt), pack(output), score_start, score_top)
        self._opened.append(opening)
        if guide is not None:
            self._guides[row] = guide

    def close(self, row: int) -> None:
        self._closed.append(row)

    def write_slots(self, row: int, start: int, slots: Sequence[int]) -> None:
        self._writes.append(SlotWrite(row, start, pack(slots)))

    def take(self, count: int) -> list[int]:
        return [int(self.free.pop()) for _ in range(count)]

    def step(self, entries: Sequence[Entry], poison: Sequence[int] = ()) -> StepOutput:
        return self.executor.step(*self._plan(entries, poison))

    def launch(self, entries: Sequence[Entry], poison: Sequence[int] = ()) -> Launched:
        return self.executor.launch(*self._plan(entries, poison))

    def _plan(self, entries: Sequence[Entry], poison: Sequence[int]) -> tuple[Plan, dict[int, Any]]:
        slots = [entry.slots if entry.slots is not None else self.take(len(entry.ids)) for entry in entries]
        plan = Plan(
            poison=pack(poison),
            closed=self._closed,
            opened=self._opened,
            slot_writes=self._writes,
            rows=pack([entry.row for entry in entries]),
            starts=pack([entry.start for entry in entries]),
            lengths=pack([len(entry.ids) for entry in entries]),
            token_ids=pack([token for entry in entries for token in entry.ids]),
            slots=pack([slot for run in slots for slot in run]),
            sample=bytes(entry.sample for entry in entries),
            speculated=pack([entry.speculated for entry in entries]),
        )
        guides, self._guides = self._guides, {}
        self._opened, self._closed, self._writes = [], [], []
        return plan, guides

    def prefill(self, row: int, prompt: Sequence[int], chunk: int = 1 << 20) -> StepOutput:
        """Computes a row's prompt in chunks and samples after the last."""
        last = (len(prompt) - 1) // chunk * chunk
        for start in range(0, last, chunk):
            self.step([Entry(row, prompt[start : start + chunk], start, sample=False)])
        return self.step([Entry(row, prompt[last:], last)])

    def generate(self, prompts: Sequence[Sequence[int]], count: int, **options: Any) -> list[list[int]]:
        """`count` tokens for every prompt, all in one batch; `sampled` keeps the log-probabilities of each."""
        for row, prompt in enumerate(prompts):
            self.open(row, prompt, **options)
        output = self.step([Entry(row, prompt, 0) for row, prompt in enumerate(prompts)])
        completions = [[token] for token in output.token_ids.tolist()]
        self.sampled = [[one] for one in output.logprobs]
        for i in range(count - 1):
            output = self.step([Entry(row, [-1], len(prompt) + i) for row, prompt in enumerate(prompts)])
            for row, token in enumerate(output.token_ids.tolist()):
                completions[row].append(token)
            for one in output.logprobs:
                self.sampled[one.row].append(one)
        for row in range(len(prompts)):
            self.close(row)
        return completions


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Torch on one thread: on a machine busy with other tests, threads that wait for each other are far slower."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", params=["torch", "cpu"])
def drive(one_thread: None, request: pytest.FixtureRequest) -> Callable[..., Driver]:
    """Loads a model into an executor and gives its driver; with each backend in turn."""

    def start(path: Path, **options: Any) -> Driver:
        from tests.runtime.executors import executor_of

        defaults = {"max_running": 32, "kv_tokens": 4096, "attention_backend": request.param}
        return Driver(executor_of(path, **defaults | options))

    return start


@pytest.fixture(scope="session")
def drive_torch(one_thread: None) -> Callable[..., Driver]:
    """As `drive`, with torch for everything, the choice of tokens too, as on a GPU."""

    def start(path: Path, **options: Any) -> Driver:
        from tests.runtime.executors import executor_of

        defaults = {"max_running": 8, "kv_tokens": 4096, "attention_backend": "torch"}
        executor = executor_of(path, **defaults | options)
        executor._sampler = None
        return Driver(executor)

    return start


@pytest.fixture(scope="session")
def drive_runner() -> Callable[[Executor], Driver]:
    return Driver


@pytest.fixture(scope="session")
def in_ranks() -> Callable[[int, Callable[[Any], Any]], list[Any]]:
    """Gives what a function gives in each of so many ranks: threads here, which exchange over gloo as processes
    do."""

    def run_all(size: int, work: Callable[[Any], Any]) -> list[Any]:
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import HashStore

        from sapwood.runtime.ranks import ProcessRanks

        store = HashStore()

        def run(rank: int) -> Any:
            group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))
            return work(ProcessRanks(cast(dist.ProcessGroup, group), torch.device("cpu")))

        with ThreadPoolExecutor(size) as threads:
            return [each.result(100) for each in [threads.submit(run, rank) for rank in range(size)]]

    return run_all


@pytest.fixture(scope="session")
def entry() -> type[Entry]:
    return Entry


@pytest.fixture(scope="session")
def sampling() -> type[Sampling]:
    return Sampling


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A random Llama of two layers, a vocabulary of 97 and a context of 512, as a Hugging Face directory."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=96,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    path = tmp_path_factory.mktemp("tiny_llama")
    LlamaForCausalLM(config).save_pretrained(path)
    return path
