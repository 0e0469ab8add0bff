"""Questions that the front asks, and their answers."""

from __future__ import annotations

from ...runtime.records import Message
from .answers import MovedLine
from .requests import Chat, Submit


class StatsCall(Message, frozen=True):
    """Front to scheduler: send `Stats` now."""

    call_id: int


class FlushCall(Message, frozen=True):
    """Front to scheduler: empty the prefix cache (everything not in use); answer with `Flushed`."""

    call_id: int


class Flushed(Message, frozen=True):
    """Scheduler to front: how many slots the flush freed."""

    call_id: int
    freed: int


class RenderCall(Message, frozen=True):
    """Front to tokenizer: what does the chat template make of this conversation?"""

    call_id: int
    chat: Chat


class Rendered(Message, frozen=True):
    """Tokenizer to front: the conversation as a prompt (text, and the ids of control tokens) and as its whole text.

    error: why the template refused it; the rest is then empty. path: of the field that is to blame. moved: added by
    the front.
    """

    call_id: int
    prompt: list[str | list[int]] = []
    text: str = ""
    error: str = ""
    path: list[str | int] = []
    moved: list[MovedLine] = []


class TokenizeCall(Message, frozen=True):
    """Front to tokenizer: which tokens are the prompt of this request? Nothing is computed, and any length is fine.

    A text that is a control token's, and nothing else, is that token: so clients find the ids of tokens by name.
    """

    call_id: int
    submit: Submit


class DetokenizeCall(Message, frozen=True):
    """Front to tokenizer: what do these tokens say, all of them together, control tokens included?"""

    call_id: int
    token_ids: list[int]


class Tokenized(Message, frozen=True):
    """Tokenizer to front: tokens, and the bytes that each adds to a text.

    error: why there are none. path: of the field that is to blame.
    """

    call_id: int
    token_ids: list[int] = []
    pieces: list[bytes] = []
    error: str = ""
    path: list[str | int] = []


class TokenizerCall(Message, frozen=True):
    """Front to tokenizer: what kind of tokenizer is it?"""

    call_id: int


class TokenizerInfo(Message, frozen=True):
    """Tokenizer to front: the tokens that templates know by name ("eos_token", …) as text, the ids that end a turn, the
    one that starts a text and whether texts get it by themselves, and the chat template; what is missing is empty."""

    call_id: int
    named_tokens: dict[str, str]
    eos_ids: list[int]
    bos_id: int | None
    adds_bos: bool
    vocab_size: int
    chat_template: str


class Stats(Message, frozen=True):
    """Scheduler to front: the books and the counters, at this moment (counters since start).

    free + private + pinned + evictable = total.
    """

    call_id: int
    total: int
    free: int
    private: int
    pinned: int
    evictable: int
    running: int
    waiting: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    finished: int
    aborted: int
    retracted: int
    speculated_tokens: int
    accepted_tokens: int
    forced_tokens: int
    evicted_tokens: int
    dropped_frames: int
    worker_dropped_frames: int
    step_seconds: float
    plan_seconds: float

    @property
    def drafted_tokens(self) -> int:
        """The old name of `speculated_tokens`, for one release."""
        return self.speculated_tokens
