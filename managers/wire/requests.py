"""A request on its way in: front -> tokenizer -> scheduler."""

from __future__ import annotations

from typing import Any

from ...constrained.spec import Compiled, Constraint
from ...runtime.records import Message, Part
from ...runtime.sampling.params import Sampling
from ...runtime.wanted import Wanted

CUSTOM_INPUT = "input"
"""The one parameter of a custom tool, where it is shown and called as a function."""


class CustomFormat(Part, frozen=True):
    """What the input of a custom tool must match. syntax: "text" (anything), "lark" or "regex"."""

    syntax: str = "text"
    definition: str = ""


class ReasoningOptions(Part, frozen=True):
    """How a model that thinks before it answers is to do so.

    enabled: whether it is to; None leaves that to its template. effort: "" or one of OpenAI's words. budget: after so
    many tokens the thinking is ended; -1 is no bound. separate: tell it from the answer, else it stays text. include:
    show it.
    """

    enabled: bool | None = None
    effort: str = ""
    budget: int = -1
    separate: bool = True
    include: bool = True


class KnownTurn(Part, frozen=True):
    """Tokens of an earlier turn of a conversation, packed: of its prompt, from where the turn before ended, and of the
    completion. shows: where this called tools, which templates write otherwise than models do: what they have to show
    of it all the same, in order."""

    prompt: bytes
    completion: bytes
    shows: list[str] = []


class Chat(Part, frozen=True):
    """A conversation for the model's chat template. `messages` are as OpenAI has them, already checked by the front.

    tools: functions. custom: which of them are custom tools, whose only parameter is CUSTOM_INPUT, by name.
    tool_choice: "none" (tools are only shown), "auto" or "required": whether the completion may, or must, call tools;
    `allowed` are the only ones that it may call, where not None; with `parallel_tool_calls` more than once.
    max_string: the longest string in their arguments that nothing else bounds; 0 for no bound.
    known: the tokens of its first turns, which the prompt keeps as far as the template shows the same.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    custom: dict[str, CustomFormat] = {}
    tool_choice: str = "none"
    allowed: list[str] | None = None
    parallel_tool_calls: bool = True
    max_string: int = 0
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}
    allow_control_tokens: bool = False
    reasoning: ReasoningOptions = ReasoningOptions()
    known: list[KnownTurn] = []


class Submit(Message, frozen=True):
    """Front to tokenizer: one request. Exactly one of `prompt` and `chat` is set.

    prompt: runs of text and of token ids, in order. Text never yields control tokens unless
        `allow_control_tokens`; ids pass through untouched. BOS is added only before leading text, where the model's
        tokenizer does so by itself.
    n: completions wanted; sample i has index i and seed `hash(seed, i)` (index 0 keeps the seed).
    score: None for generation. For scoring, the continuations (text or ids): continuation i has index i, generates
        nothing, and answers with the log-probability of each of its tokens. Text after text is tokenized together
        with it; the score covers the tokens from the first one that differs from the prompt's own tokens.
    wanted: of the prompt's positions, beside what is generated; a negative start counts from the prompt's end. For
        scoring, of the continuation's, wherever it starts.
    stop: stop strings; the completion ends before the first one, unless `include_stop`.
    echo: the first text chunk of every sample starts with the prompt's own text.
    prediction: what the completion is likely to say, for speculation; it never changes an answer.
    max_tokens in `sampling` is a cap; -1 means whatever the context leaves.
    constraint: what every completion must match; only without `score`.
    explain_cache: the report of where the prompt left the cached path quotes both.
    tells_prompt: the first chunk has the prompt's ids.
    """

    request_id: str
    sampling: Sampling
    prompt: list[str | list[int]] | None = None
    chat: Chat | None = None
    n: int = 1
    score: list[str | list[int]] | None = None
    wanted: Wanted | None = None
    stop: list[str] = []
    include_stop: bool = False
    echo: bool = False
    skip_special_tokens: bool = True
    allow_control_tokens: bool = False
    namespace: str = ""
    priority: int = 0
    constraint: Constraint | None = None
    explain_cache: bool = False
    prediction: str = ""
    tells_prompt: bool = False


class TokenizedRequest(Message, frozen=True):
    """Tokenizer to scheduler: one sequence to compute (a request with n samples, or n scores, becomes n of these).

    token_ids: packed prompt, at least one token; `len + max_tokens` fits the context.
    stop_ids: ids that end the completion (the model's EOS ids unless ignore_eos, and `stop_token_ids`).
    wanted: of the prompt's positions; log-probabilities never from position 0 on, which has none.
    grammar: what the completion must match. prediction: packed, what it is likely to be.
    """

    request_id: str
    index: int
    token_ids: bytes
    sampling: Sampling
    stop_ids: list[int]
    namespace: str
    priority: int
    wanted: Wanted | None = None
    grammar: Compiled | None = None
    prediction: bytes = b""


class Abort(Message, frozen=True):
    """Front to tokenizer, passed on to the scheduler: drop this request and all its samples; no answer follows."""

    request_id: str


class StopMatched(Message, frozen=True):
    """Tokenizer to scheduler: sample `index` ended by a stop string; it needs no more tokens and no answer."""

    request_id: str
    index: int
