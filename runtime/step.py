"""What one step does, and what it gave: the records that go from the scheduler to the executor and back.

They are declared here once and travel as they are. Torch-free. Arrays are packed int32 (`records.pack_ids`).
"""

from __future__ import annotations

from typing import Literal

from .records import Message, Part, TopLogprobs
from .sampling.params import Sampling
from .wanted import PromptAnswer, Wanted

# --- what it does ---------------------------------------------------------------------------------------------------


class OpenRow(Part, frozen=True):
    """A sequence takes a row of the executor's tables.

    prompt_ids / output_ids: packed; `output_ids` is what it had generated before it was retracted (penalties and
    min_tokens count it). wanted: of the prompt's positions, beside the next token. grammar: the key of the grammar that
    its completion must match, which the worker holds; "" for none.
    """

    row: int
    sampling: Sampling
    stop_ids: list[int]
    prompt_ids: bytes
    output_ids: bytes
    wanted: Wanted | None = None
    grammar: str = ""


class SlotWrite(Part, frozen=True):
    """Positions [start, start + n) of a row's sequence live in these slots (packed)."""

    row: int
    start: int
    slots: bytes


class SharedSlots(Part, frozen=True):
    """These entries of the step (by number) have the same slots for their first `length` positions."""

    entries: list[int]
    length: int


class TierCopy(Part, frozen=True):
    """The K and V of `slots` go out to `places` of the tier below the KV pool, or come in from there (packed both)."""

    slots: bytes
    places: bytes
    out: bool


class StepPlan(Message, frozen=True):
    """Scheduler to worker: everything that one step does, in this order.

    1. `copies`, one after the other: each may use again what an earlier one has left.
    2. `poison` (test mode): fill the K and V of these freed slots with NaN.
    3. `closed`: forget these rows. 4. `opened`: set up these rows. 5. `slot_writes`: update rows' slot tables.
    6. One forward pass over the batch of B entries. Entry b computes `lengths[b]` tokens of row `rows[b]` at
       positions `starts[b] ...`; their ids and slots are the entry's run of `token_ids` and `slots` (each of length
       sum(lengths)). The slots are also written to the row's table, so entry b attends to the row's slots
       [0, starts[b] + lengths[b]), causally. A token id of -1 stands for the token which the row sampled in its last
       step. Within a layer all K/V of the step is stored before any attention is computed, so an entry may attend to
       slots that another entry of the same step fills.
    7. Where `sample[b]` is 1, sample the next token from the entry's last position. The last `speculated[b]` tokens of
       the entry are guesses: sample from the position before them instead, and go on to the next position for as
       long as what comes out is the guess that was computed there.
    8. What the row's `wanted` says of those of the prompt's positions that the entry's hidden states are about.

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
    copies: list[TierCopy] = []


# --- what it gave ---------------------------------------------------------------------------------------------------


class SampledLogprob(Part, frozen=True):
    """Natural log-probability of a token that was sampled, from the model's unmodified logits."""

    logprob: float
    top: TopLogprobs


class GrammarEdit(Part, frozen=True):
    """What a grammar did to a completion in the whole step, beside the tokens gained.

    rewind: so many of the completion's last tokens go before the new ones come. forced: how many of the new ones were
    not sampled. held: how many of the completion's last tokens may still be taken back. complete: nothing can follow.
    """

    rewind: int
    forced: int
    held: int
    complete: bool


class Failure(Part, frozen=True):
    """Why an entry's request must end. The others of the step are unharmed.

    kind: "not finite": its logits were not, and nothing else of the entry counts. "grammar": it found no way on, and
    `message` says why, in a sentence for the user. "matcher": what matches its grammar raised `message`.
    """

    kind: Literal["not finite", "grammar", "matcher"]
    message: str = ""


class EntryResult(Part, frozen=True):
    """What the step gave to one entry.

    token_ids: the completion's new tokens. logprobs: one for each of them, where they are wanted. prompt: what is
    wanted of the prompt's positions, as far as this step computed it. edit: where the row has a grammar and sampled.
    """

    token_ids: list[int] = []
    logprobs: list[SampledLogprob] = []
    prompt: PromptAnswer | None = None
    edit: GrammarEdit | None = None
    failure: Failure | None = None


class StepResult(Message, frozen=True):
    """Worker to scheduler: what step `step` gave, to each entry in the plan's order.

    The worker adds to what its executor says: `seconds`, the time that the step took, and how many frames it dropped.
    """

    step: int
    entries: list[EntryResult]
    seconds: float = 0.0
    dropped_frames: int = 0
