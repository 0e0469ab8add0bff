"""The life of a process: what the supervisor's side and its children say to each other."""

from __future__ import annotations

from ...runtime.records import Message, Part
from ...runtime.sampling.recommendation import SamplingDefaults
from .options import EngineConfig


class Hello(Message, frozen=True):
    """Child to front: the process is up and its inbox is bound."""

    role: str
    pid: int


class ConfigureTokenizer(Message, frozen=True):
    """Front to tokenizer: which model's text it handles (a local path, already fetched)."""

    model_path: str
    options: EngineConfig


class ConfigureWorker(Message, frozen=True):
    """Front to worker, once the tokenizer is ready: the model (a local path) and how to run it.

    vocab_size: of the tokenizer. A model may have embeddings for more ids, which no token has.
    """

    model_path: str
    vocab_size: int
    options: EngineConfig


class ConfigureScheduler(Message, frozen=True):
    """Front to scheduler, once the worker is ready: the size of everything it keeps books of.

    `max_context` is what the model and the pool leave of the option.
    """

    total_slots: int
    max_context: int
    options: EngineConfig


class Limits(Message, frozen=True):
    """Front to tokenizer, once the worker is ready: prompt + completion may hold `max_context` tokens at most."""

    max_context: int


class ModelInfo(Part, frozen=True):
    """What the worker found in the checkpoint, for the others and for the log. `weight_bytes` and `kv_bytes` are those
    of all ranks together, `threads` those of each. `vocab_size`: its token ids are 0 to vocab_size - 1.
    `recommended`: how its makers would have tokens chosen, where they say so."""

    architecture: str
    parameters: int
    weight_bytes: int
    vocab_size: int
    model_context: int
    total_slots: int
    kv_bytes: int
    attention_backend: str
    dtype: str
    kv_dtype: str
    threads: int
    recommended: SamplingDefaults | None = None


class ReasoningInfo(Part, frozen=True):
    """How the model's usual template deals with thinking. marks: the name of how it is marked, "" for not at all.
    takes_switch, takes_effort: a request can say whether to think, and how hard. keeps_earlier: what was thought stays
    in the prompt of later turns; where it does not, an answer is read anew in the turn after it.
    """

    marks: str = ""
    takes_switch: bool = False
    takes_effort: bool = False
    keeps_earlier: bool = False

    @property
    def thinks(self) -> bool:
        return bool(self.marks) or self.takes_switch or self.takes_effort


class Ready(Message, frozen=True):
    """Child to front: configured. `timings` says what start-up was spent on (seconds). The worker fills `model`, the
    tokenizer `vocab_size` (its ids are 0 to vocab_size - 1) and `reasoning`."""

    role: str
    timings: dict[str, float]
    model: ModelInfo | None = None
    vocab_size: int = 0
    reasoning: ReasoningInfo = ReasoningInfo()


class StartFailed(Message, frozen=True):
    """Child to front: it cannot start, in one sentence for the user. The child then exits with code 1."""

    role: str
    message: str


class Shutdown(Message, frozen=True):
    """Front to child: finish at once and exit with code 0."""
