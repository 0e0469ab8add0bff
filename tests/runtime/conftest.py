"""Drives an executor in the tests: keeps the books that the scheduler keeps in earnest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from sapwood.runtime.records import pack_ids
from sapwood.runtime.sampling.params import Sampling
from sapwood.runtime.step import OpenRow, SampledLogprob, SlotWrite, StepPlan, StepResult
from sapwood.runtime.wanted import HiddenStates, PromptLogprobs, Wanted

if TYPE_CHECKING:
    from sapwood.runtime.execution.executor import Executor
    from sapwood.runtime.execution.launched import Launched


def greedy(**options: Any) -> Sampling:
    """Sampling that is greedy unless the options say otherwise."""
    return Sampling(**{"max_tokens": 1 << 20, "seed": 1, "temperature": 0.0} | options)


@dataclass(frozen=True)
class Gained:
    """A step's result, and what all of its entries gained in turn. counts: None for an entry that failed."""

    result: StepResult

    @property
    def counts(self) -> list[int | None]:
        return [len(each.token_ids) if each.failure is None else None for each in self.result.entries]

    @property
    def token_ids(self) -> list[int]:
        return [token_id for each in self.result.entries for token_id in each.token_ids]

    @property
    def logprobs(self) -> list[SampledLogprob]:
        return [logprob for each in self.result.entries for logprob in each.logprobs]

    @property
    def scored(self) -> list[PromptLogprobs]:
        return [each.prompt for each in self.result.entries if isinstance(each.prompt, PromptLogprobs)]

    @property
    def hidden(self) -> list[HiddenStates]:
        return [each.prompt for each in self.result.entries if isinstance(each.prompt, HiddenStates)]


@dataclass(frozen=True)
class Entry:
    """`ids` of a row to compute next, the last `speculated` of them guesses; their slots are new ones unless given."""

    row: int
    ids: Sequence[int]
    start: int
    sample: bool = True
    speculated: int = 0
    slots: Sequence[int] | None = None


class Driver:
    """An executor with free slots in shuffled order. What is opened, closed, … goes out with the next step."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.free = list(np.random.default_rng(0).permutation(executor.pool.slots))
        self._opened: list[OpenRow] = []
        self._matchers: dict[int, Any] = {}
        self._closed: list[int] = []
        self._writes: list[SlotWrite] = []

    def open(
        self,
        row: int,
        prompt: Sequence[int],
        *,
        output: Sequence[int] = (),
        stop_ids: Sequence[int] = (),
        wanted: Wanted | None = None,
        matcher: Any = None,
        **sampling: Any,
    ) -> None:
        ids = (pack_ids(list(prompt)), pack_ids(list(output)))
        opening = OpenRow(row, greedy(**sampling), list(stop_ids), *ids, wanted)
        self._opened.append(opening)
        if matcher is not None:
            self._matchers[row] = matcher

    def close(self, row: int) -> None:
        self._closed.append(row)

    def write_slots(self, row: int, start: int, slots: Sequence[int]) -> None:
        self._writes.append(SlotWrite(row, start, pack_ids(list(slots))))

    def take(self, count: int) -> list[int]:
        return [int(self.free.pop()) for _ in range(count)]

    def step(self, entries: Sequence[Entry], poison: Sequence[int] = ()) -> Gained:
        return Gained(self.executor.step(*self._plan(entries, poison)))

    def launch(self, entries: Sequence[Entry], poison: Sequence[int] = ()) -> Launched:
        return self.executor.launch(*self._plan(entries, poison))

    @staticmethod
    def gained(launched: Launched) -> Gained:
        return Gained(launched.result())

    def _plan(self, entries: Sequence[Entry], poison: Sequence[int]) -> tuple[StepPlan, dict[int, Any]]:
        slots = [entry.slots if entry.slots is not None else self.take(len(entry.ids)) for entry in entries]
        plan = StepPlan(
            step=0,
            poison=pack_ids(list(poison)),
            closed=self._closed,
            opened=self._opened,
            slot_writes=self._writes,
            rows=pack_ids([entry.row for entry in entries]),
            starts=pack_ids([entry.start for entry in entries]),
            lengths=pack_ids([len(entry.ids) for entry in entries]),
            token_ids=pack_ids([token for entry in entries for token in entry.ids]),
            slots=pack_ids([slot for run in slots for slot in run]),
            sample=bytes(entry.sample for entry in entries),
            speculated=pack_ids([entry.speculated for entry in entries]),
        )
        matchers, self._matchers = self._matchers, {}
        self._opened, self._closed, self._writes = [], [], []
        return plan, matchers

    def prefill(self, row: int, prompt: Sequence[int], chunk: int = 1 << 20) -> Gained:
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
        completions = [list(each.token_ids) for each in output.result.entries]
        self.sampled = [list(each.logprobs) for each in output.result.entries]
        for i in range(count - 1):
            output = self.step([Entry(row, [-1], len(prompt) + i) for row, prompt in enumerate(prompts)])
            for row, each in enumerate(output.result.entries):
                completions[row] += each.token_ids
                self.sampled[row] += each.logprobs
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

        from sapwood.runtime.execution.ranks import ProcessRanks

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
def sampling() -> Callable[..., Sampling]:
    return greedy


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
