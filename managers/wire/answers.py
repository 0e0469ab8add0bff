"""A request on its way out: scheduler -> tokenizer -> front."""

from __future__ import annotations

from typing import Literal

from ...constrained.spec import Unenforced
from ...runtime.records import Message, Part, TopLogprobs
from ...runtime.wanted import HiddenStates, PromptAnswer
from .errors import FieldError, InvalidRequest, PromptTooLong, RequestFailed


class Finish(Part, frozen=True):
    """Why a completion ended. reason: "stop", "length", "abort" or "error"; to the front also "tool_calls".

    matched: the stop token id or stop string, for "stop". message and fault: for "error"; the fault is with the server,
    with its load (a full queue), or with the request (a constraint that cannot be met).
    """

    reason: str
    matched: int | str | None = None
    message: str = ""
    fault: Literal["server", "load", "request"] = "server"


class Effort(Part, frozen=True):
    """What one sample took. forward_passes: steps that computed tokens of its completion (its prefill is not
    counted). speculated, accepted: tokens that were guessed ahead, and those of them that turned out right. forced:
    tokens that its grammar forced, which were not sampled."""

    forward_passes: int = 0
    speculated: int = 0
    accepted: int = 0
    forced: int = 0

    @property
    def drafted(self) -> int:
        """The old name of `speculated`, for one release."""
        return self.speculated


MissReason = Literal[
    "last_token",
    "wanted_positions",
    "cache_off",
    "being_computed",
    "evicted",
    "tokenized_otherwise",
    "tools_changed",
    "template_changed_earlier_text",
    "answer_changed",
    "never_seen",
]
"""Why a prompt has to be computed from where it leaves the cached path: its last token always is; something is wanted
of its positions; nothing is shared; another request is computing the same just now; it was there and was evicted (or
flushed); the same text is there in other tokens, as a model may write it; the conversation's tools or options of its
template are others; the template shows a message otherwise than before (or, where it has shown none of it yet, than
the model wrote it); an answer came back as another text than it was; or nobody has sent this."""


class CacheMiss(Part, frozen=True):
    """Where a prompt left the cached path: `position` is the first that had to be computed. cached_ids: how the tree of
    its own namespace goes on there instead, a few tokens. elsewhere: how many of its tokens another namespace holds,
    where the own one holds none: for the server's log alone, no client may learn it."""

    position: int
    reason: MissReason
    cached_ids: list[int]
    elsewhere: int = 0


class TokenChunk(Part, frozen=True):
    """New tokens of one sample. `logprobs`, where wanted, is as long as `token_ids`.

    prompt: what is wanted of the prompt's positions, sent once, with the first chunk that has it all.
    effort: of the sample so far. miss: with the first chunk of index 0.
    """

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[float]
    top: list[TopLogprobs]
    cached_tokens: int
    prompt: PromptAnswer | None = None
    finish: Finish | None = None
    effort: Effort = Effort()
    miss: CacheMiss | None = None


class TokenBatch(Message, frozen=True):
    """Scheduler to tokenizer: what one step, or one decision of the scheduler, gave to its requests."""

    chunks: list[TokenChunk]


class Alternative(Part, frozen=True):
    """One token as a user sees it; `text` may hold U+FFFD where `data` is not whole UTF-8."""

    token_id: int
    text: str
    data: bytes
    logprob: float


class TokenLogprob(Part, frozen=True):
    """One position's token with its log-probability (None at position 0 of a prompt) and the likeliest others."""

    token_id: int
    text: str
    data: bytes
    logprob: float | None
    top: list[Alternative]


class ToolCallPiece(Part, frozen=True):
    """New of a sample's tool call number `index`: its id and name once, at first, then pieces of its arguments.

    custom: it calls a custom tool; `arguments` are then pieces of its input, which is text.
    """

    index: int
    arguments: str
    id: str = ""
    name: str = ""
    custom: bool = False


class MovedLine(Part, frozen=True):
    """A line that `--stable-prefix` took from a system message, number `message`. rule: what it is. to: behind the text
    of which message it was put; None where it was dropped."""

    rule: str
    message: int
    to: int | None
    line: str


class CacheReport(Part, frozen=True):
    """Where a prompt left the cached path, as its sender may know it; all but `elsewhere` (see `CacheMiss`).

    message, role: of a conversation, the message that this lies in; None behind the last one. character: the place in
    the prompt's text, of which chat templates and BOS tokens are a part. cached_text, prompt_text: how the path goes on
    there, and how the prompt does; only where asked for. moved: what `--stable-prefix` changed before.
    """

    position: int
    reason: MissReason
    message: int | None = None
    role: str = ""
    character: int | None = None
    cached_text: str = ""
    prompt_text: str = ""
    elsewhere: int = 0
    moved: list[MovedLine] = []


class TextChunk(Message, frozen=True):
    """Tokenizer to front: new text of one sample. Joined `text` is the whole completion; `text` may be empty.

    prompt_tokens and cached_tokens are set in every chunk; completion_tokens counts this sample's tokens so far. The
    chunk with a `finish` is the sample's last. prompt_logprobs and hidden, where wanted, come once; for a scoring
    request they are of the continuation's tokens only. effort comes with the finish; relaxed, with the first chunk of
    index 0: what the constraint names but does not enforce. tool_calls: where the request may call tools, its calls are
    here, and `text` is the text before them. reasoning: what the model thought before its answer, where it marks that;
    it is no part of `text`. reasoning_tokens: how many of the completion's tokens so far are of that, with its marks.
    cache: with the first chunk of index 0; so are prompt_ids, the prompt's tokens, where they are wanted.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob] | None = None
    finish: Finish | None = None
    effort: Effort | None = None
    relaxed: list[Unenforced] = []
    tool_calls: list[ToolCallPiece] = []
    hidden: HiddenStates | None = None
    reasoning: str = ""
    cache: CacheReport | None = None
    reasoning_tokens: int = 0
    prompt_ids: list[int] | None = None


class Rejected(Message, frozen=True):
    """Tokenizer to front: the whole request is refused. kind: "invalid" or "too_long" (400), or "failed" (500).

    sentence, path: as those of `errors.FieldError`.
    """

    request_id: str
    kind: str
    sentence: list[str | list[str | int]]
    path: list[str | int] | None = None

    @classmethod
    def of(cls, request_id: str, error: FieldError) -> Rejected:
        """What is wrong with the request itself."""
        sentence = [each if isinstance(each, str) else list(each) for each in error.sentence]
        kind = "too_long" if isinstance(error, PromptTooLong) else "invalid"
        return cls(request_id, kind, sentence, None if error.path is None else list(error.path))

    def error(self) -> InvalidRequest | RequestFailed:
        """The refusal as who asked is to get it."""
        sentence = [each if isinstance(each, str) else tuple(each) for each in self.sentence]
        kind = PromptTooLong if self.kind == "too_long" else InvalidRequest
        error = kind(sentence, None if self.path is None else tuple(self.path))
        return RequestFailed(str(error)) if self.kind == "failed" else error
