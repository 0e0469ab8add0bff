"""Every message that passes between the processes: plain msgspec structs, nothing else.

Each struct is tagged with its class name and travels as msgpack (see `wire`). Arrays of token ids and slots travel as
raw little-endian int32 bytes (`message_base.pack_ids`). A step's are in `step_messages`. Nothing is ever pickled.
"""

from __future__ import annotations

from typing import Any, Literal

from ..constrained.spec import Compiled, Constraint, Unenforced
from .message_base import Message, Part, Sampling, TopLogprobs
from .step_messages import GrammarReady, PrepareGrammar, StepPlan, StepResult

# --- life of a process: supervisor <-> children -------------------------------------------------------------------


class Hello(Message, frozen=True):
    """Child to front: the process is up and its inbox is bound."""

    role: str
    pid: int


class ConfigureTokenizer(Message, frozen=True):
    """Front to tokenizer: which model's text it handles (a local path, already fetched).

    `tool_format`: how the model writes tool calls, see `runtime.text.tool_formats`; "auto" asks its chat template.
    """

    model_path: str
    log_level: str
    tool_format: str = "auto"


class ConfigureWorker(Message, frozen=True):
    """Front to worker: the model and how to run it.

    `kv_tokens` 0 means: as many as `kv_memory_fraction` of the memory that is available allows.
    `threads` 0 means torch's own default.
    """

    model_path: str
    device: str
    deterministic: bool
    dtype: str
    kv_dtype: str
    attention_backend: str
    quantize: str
    threads: int
    kv_tokens: int
    kv_memory_fraction: float
    max_running: int
    max_context: int
    poison_freed: bool
    jump_forward: bool
    log_level: str


class ConfigureScheduler(Message, frozen=True):
    """Front to scheduler, once the worker is ready: the size of everything it keeps books of."""

    total_slots: int
    max_context: int
    chunk_tokens: int
    max_running: int
    max_queue: int
    schedule: str
    prefix_cache: bool
    drafts: bool
    audit: bool
    poison_freed: bool
    log_level: str


class Limits(Message, frozen=True):
    """Front to tokenizer, once the worker is ready: prompt + completion may hold `max_context` tokens at most."""

    max_context: int


class ModelInfo(Part, frozen=True):
    """What the worker found in the checkpoint, for the others and for the log. `weight_bytes` and `kv_bytes` are those
    of all ranks together, `threads` those of each."""

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


class Ready(Message, frozen=True):
    """Child to front: configured. `timings` says what start-up was spent on (seconds). The worker fills `model`, the
    tokenizer `vocab_size`: its ids are 0 to vocab_size - 1."""

    role: str
    timings: dict[str, float]
    model: ModelInfo | None = None
    vocab_size: int = 0


class StartFailed(Message, frozen=True):
    """Child to front: it cannot start, in one sentence for the user. The child then exits with code 1."""

    role: str
    message: str


class Shutdown(Message, frozen=True):
    """Front to child: finish at once and exit with code 0."""


# --- a request on its way in: front -> tokenizer -> scheduler -----------------------------------------------------


class Chat(Part, frozen=True):
    """A conversation for the model's chat template. `messages` are as OpenAI has them, already checked by the front.

    tool_choice: "none" (tools are only shown), "auto" or "required": whether the completion may, or must, call tools;
    with `tool_name` only that one; with `parallel_tool_calls` more than once.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str = "none"
    tool_name: str | None = None
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}
    allow_control_tokens: bool = False


class Submit(Message, frozen=True):
    """Front to tokenizer: one request. Exactly one of `prompt` and `chat` is set.

    prompt: runs of text and of token ids, in order. Text never yields control tokens unless
        `allow_control_tokens`; ids pass through untouched. BOS is added only before leading text, where the model's
        tokenizer does so by itself.
    n: completions wanted; sample i has index i and seed `hash(seed, i)` (index 0 keeps the seed).
    score: None for generation. For scoring, the continuations (text or ids): continuation i has index i, generates
        nothing, and answers with the log-probability of each of its tokens. Text after text is tokenized together
        with it; the score covers the tokens from the first one that differs from the prompt's own tokens.
    prompt_logprobs: k >= 0 wants log-probabilities of the prompt tokens from position `logprob_start` on
        (position 0 has none), with the k most likely alternatives.
    stop: stop strings; the completion ends before the first one, unless `include_stop`.
    echo: the first text chunk of every sample starts with the prompt's own text.
    max_tokens in `sampling` is a cap; -1 means whatever the context leaves.
    constraint: what every completion must match; only without `score`.
    """

    request_id: str
    sampling: Sampling
    prompt: list[str | list[int]] | None = None
    chat: Chat | None = None
    n: int = 1
    score: list[str | list[int]] | None = None
    prompt_logprobs: int | None = None
    logprob_start: int = 0
    stop: list[str] = []
    include_stop: bool = False
    echo: bool = False
    skip_special_tokens: bool = True
    allow_control_tokens: bool = False
    namespace: str = ""
    priority: int = 0
    constraint: Constraint | None = None


class TokenizedRequest(Message, frozen=True):
    """Tokenizer to scheduler: one sequence to compute (a request with n samples, or n scores, becomes n of these).

    token_ids: packed prompt, at least one token; `len + max_tokens` fits the context.
    stop_ids: ids that end the completion (the model's EOS ids unless ignore_eos, and `stop_token_ids`).
    score_start: positions >= this want the log-probability of their token; None for none. Never 0.
    grammar: what the completion must match.
    """

    request_id: str
    index: int
    token_ids: bytes
    sampling: Sampling
    stop_ids: list[int]
    namespace: str
    priority: int
    score_start: int | None = None
    score_top: int = 0
    grammar: Compiled | None = None


class Abort(Message, frozen=True):
    """Front to tokenizer, passed on to the scheduler: drop this request and all its samples; no answer follows."""

    request_id: str


class StopMatched(Message, frozen=True):
    """Tokenizer to scheduler: sample `index` ended by a stop string; it needs no more tokens and no answer."""

    request_id: str
    index: int


# --- a request on its way out: scheduler -> tokenizer -> front ----------------------------------------------------


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
    counted). drafted, accepted: tokens that were guessed ahead, and those of them that turned out right. forced: tokens
    that its grammar forced, which were not sampled."""

    forward_passes: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0


class TokenChunk(Part, frozen=True):
    """New tokens of one sample. `logprobs`, where wanted, is as long as `token_ids`.

    scored: prompt log-probabilities from position score_start on, sent once, with the first chunk that has them all.
    effort: of the sample so far.
    """

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[float]
    top: list[TopLogprobs]
    cached_tokens: int
    scored: list[float] | None = None
    scored_top: list[TopLogprobs] | None = None
    finish: Finish | None = None
    effort: Effort = Effort()


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
    """New of a sample's tool call number `index`: its id and name once, at first, then pieces of its arguments."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""


class TextChunk(Message, frozen=True):
    """Tokenizer to front: new text of one sample. Joined `text` is the whole completion; `text` may be empty.

    prompt_tokens and cached_tokens are set in every chunk; completion_tokens counts this sample's tokens so far. The
    chunk with a `finish` is the sample's last. prompt_logprobs, where wanted, comes once; for a scoring request it
    holds the continuation's tokens only. effort comes with the finish; relaxed, with the first chunk of index 0: what
    the constraint names but does not enforce. tool_calls: where the request may call tools, its calls are here, and
    `text` is the text before them.
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


class Rejected(Message, frozen=True):
    """Tokenizer to front: the whole request is refused. kind: "invalid" (400) or "failed" (500)."""

    request_id: str
    kind: str
    message: str
    field: str | None = None


# --- questions to the scheduler -----------------------------------------------------------------------------------


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

    error: why the template refused it; the rest is then empty.
    """

    call_id: int
    prompt: list[str | list[int]] = []
    text: str = ""
    error: str = ""


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
    drafted_tokens: int
    accepted_tokens: int
    forced_tokens: int
    evicted_tokens: int
    dropped_frames: int
    worker_dropped_frames: int
    step_seconds: float
    plan_seconds: float


ToTokenizer = ConfigureTokenizer | Limits | Submit | Abort | TokenBatch | RenderCall | Shutdown
ToScheduler = (
    ConfigureScheduler
    | TokenizedRequest
    | Abort
    | StopMatched
    | StepResult
    | GrammarReady
    | StatsCall
    | FlushCall
    | Shutdown
)
ToWorker = ConfigureWorker | StepPlan | PrepareGrammar | Shutdown
ToFront = Hello | Ready | StartFailed | TextChunk | Rejected | Rendered | Stats | Flushed
