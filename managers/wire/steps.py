"""What passes between scheduler and worker: what a step does, and what it gave."""

from __future__ import annotations

from ...constrained.spec import Compiled
from ...runtime.records import Part, TopLogprobs
from ...runtime.sampling.params import Sampling
from .message import Message


class OpenRow(Part, frozen=True):
    """A sequence takes a row of the worker's tables.

    prompt_ids / output_ids: packed; `output_ids` is what it had generated before it was retracted (penalties and
    min_tokens count it). score_start as in TokenizedRequest, moved past what was already scored.
    """

    row: int
    sampling: Sampling
    stop_ids: list[int]
    prompt_ids: bytes
    output_ids: bytes
    score_start: int | None
    score_top: int
    grammar: Compiled | None = None


class SlotWrite(Part, frozen=True):
    """Positions [start, start + n) of a row's sequence live in these slots (packed)."""

    row: int
    start: int
    slots: bytes


class SharedSlots(Part, frozen=True):
    """These entries of the step (by number) have the same slots for their first `length` positions."""

    entries: list[int]
    length: int


class StepPlan(Message, frozen=True):
    """Scheduler to worker: everything that one step does, in this order.

    1. `poison` (test mode): fill the K and V of these freed slots with NaN.
    2. `closed`: forget these rows. 3. `opened`: set up these rows. 4. `slot_writes`: update rows' slot tables.
    5. One forward pass over the batch of B entries. Entry b computes `lengths[b]` tokens of row `rows[b]` at
       positions `starts[b] ...`; their ids and slots are the entry's run of `token_ids` and `slots` (each of length
       sum(lengths)). The slots are also written to the row's table, so entry b attends to the row's slots
       [0, starts[b] + lengths[b]), causally. A token id of -1 stands for the token which the row sampled in its last
       step. Within a layer all K/V of the step is stored before any attention is computed, so an entry may attend to
       slots that another entry of the same step fills.
    6. Where `sample[b]` is 1, sample the next token from the entry's last position. The last `speculated[b]` tokens of
       the entry are guesses: sample from the position before them instead, and go on to the next position for as
       long as what comes out is the guess that was computed there.
    7. Where the row has a score_start: log-probabilities of the prompt tokens at positions p >= score_start with
       starts[b] <= p - 1 < starts[b] + lengths[b].

    All arrays are packed int32 (`sample`: one byte each; `speculated`: empty where nothing is guessed). Plans are
    executed strictly in order. `shared` names groups of entries, each in one at most, whose shared K/V a backend may
    read once for all; results do not depend on it.
    """

    step: int
    closed: list[int]
    opened: list[OpenRow]
    slot_writes: list[SlotWrite]
    rows: bytes
    starts: bytes
    lengths: bytes
    token_ids: bytes
    slots: bytes
    sample: bytes
    poison: bytes = b""
    shared: list[SharedSlots] = []
    speculated: bytes = b""


class PrepareGrammar(Message, frozen=True):
    """Scheduler to worker: requests with this grammar will come; load it beside the steps, then say `GrammarReady`."""

    grammar: Compiled


class GrammarReady(Message, frozen=True):
    """Worker to scheduler: the grammar of this key is loaded, or cannot be: then `error` says why."""

    key: str
    error: str = ""


class Scored(Part, frozen=True):
    """Log-probabilities of the prompt tokens at positions start, start + 1, … of the batch entry `entry`."""

    entry: int
    start: int
    logprobs: list[float]
    top: list[TopLogprobs]


class SampledLogprob(Part, frozen=True):
    """Natural log-probability of the token sampled by batch entry `entry`, from the model's unmodified logits."""

    entry: int
    logprob: float
    top: TopLogprobs


class Guided(Part, frozen=True):
    """What a grammar did to batch entry `entry`, beside the tokens it gained (`constrained.matching.interface.Edit`).

    rewind: so many of the completion's last tokens go before the new ones come. forced: how many of the new ones were
    not sampled.
    """

    entry: int
    rewind: int
    forced: int
    held: int
    complete: bool
    failure: str


class StepResult(Message, frozen=True):
    """Worker to scheduler: what step `step` gave.

    counts: packed [B]; how many tokens the entry gained, -2 where its logits were not finite (that request fails; the
    others are unharmed). token_ids: packed, the entries' new tokens one after the other. logprobs: one for each new
    token, where they are wanted. guided: one for each entry whose row has a grammar and sampled. `seconds` is the time
    the step took in the worker.
    """

    step: int
    counts: bytes
    token_ids: bytes
    logprobs: list[SampledLogprob]
    scored: list[Scored]
    seconds: float
    guided: list[Guided] = []
    dropped_frames: int = 0
