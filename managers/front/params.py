"""What a caller may ask for, and the checks at the door: everything downstream trusts what leaves here.

`GenerateRequest` and `ScoreRequest` are at once the native HTTP bodies, the keyword arguments of `Engine`, and what the
OpenAI endpoints map to. A value that is out of range is refused by the name of its field, never bent into shape.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from itertools import chain, groupby
from typing import Any, cast

import msgspec

from ...constrained.spec import Constraint
from ...runtime.sampling.params import Sampling
from ...runtime.wanted import Wanted
from ..wire.errors import InvalidRequest
from ..wire.requests import Chat, Submit
from .bodies import check_encodable
from .chats import check_chat, check_tool_choice
from .constraints import Constraints, refuse_options, requested_constraint, tool_options

DEFAULT_MAX_TOKENS = 128
MAX_TOKENS = 2**31 - 1
MAX_SAMPLES = 128
MAX_CONTINUATIONS = 1024
MAX_LOGPROBS = 100
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 256  # every token of every stream is looked through for them
MAX_NAME = 256
GREEDY_BELOW = 1e-5  # dividing logits by less than this overflows float32; such a temperature is greedy

Prompt = str | list[str | int | list[int]]
_CHAT_FIELDS = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "add_generation_prompt",
    "continue_final_message",
    "template_kwargs",
)


class GenerateRequest(Constraints, msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One prompt (or conversation) and how to complete it. Exactly one of `prompt` and `messages` is given.

    prompt: text, token ids, or a list mixing both; neighbouring texts are joined, neighbouring ids are one run.
    messages, tools, template_kwargs: a conversation as OpenAI has it, for the model's chat template.
    tool_choice: whether the completion may call the tools: "auto" (None means that), "required", a named one, or "none"
        (they are only shown). parallel_tool_calls: whether it may call several; None means yes.
    add_generation_prompt: open the assistant's turn at the end; None means: unless `continue_final_message`.
    continue_final_message: leave the last message open, so that the completion continues it.
    max_tokens: a cap on the completion; None means 128 for a prompt and what the context leaves for messages.
        0 computes and caches the prompt only.
    min_tokens: before so many tokens, neither stop ids nor stop strings end the completion.
    temperature: 0 is greedy (as is anything below 1e-5). top_k: 0 or -1 is off. top_p: 1 is off. min_p: 0 is off.
    repetition_penalty divides (multiplies) positive (negative) logits of tokens seen in prompt or completion; 1 is off.
    presence_penalty, frequency_penalty: subtracted from logits of tokens seen in the completion, once / per time.
    logit_bias: token id to a number in [-100, 100] added to its logit.
    seed: any 64-bit integer; None draws one. n: completions; sample i uses a seed derived from (seed, i).
    stop: strings before which the completion ends. stop_token_ids: tokens at which it ends. include_stop keeps them.
    ignore_eos: the model's own end-of-turn tokens do not end the completion.
    logprobs: k >= 0 wants each token's natural log-probability and those of the k likeliest tokens there.
    prompt_logprobs: the same for the prompt's tokens from position `logprob_start` on (position 0 has none).
    echo: the text starts with the prompt's text. skip_special_tokens: control tokens have no text in the completion.
    allow_control_tokens: text that looks like a control token becomes one. Unsafe with text from strangers.
    cache_salt: only requests of the same salt share cached prefixes. priority: higher goes first.
    What the completion must match: see `managers.front.constraints.Constraints`.
    """

    prompt: Prompt | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    n: int = 1
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_start: int = 0
    echo: bool = False
    skip_special_tokens: bool = True
    allow_control_tokens: bool = False
    cache_salt: str = ""
    priority: int = 0
    request_id: str | None = None


class ScoreRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How likely the model finds each of several continuations of one prompt.

    prompt: as in GenerateRequest; an empty one stands for the start of a text: the model's BOS token or, where it has
        none, its end-of-text token. The log-probabilities are then unconditional.
    continuations: texts or lists of token ids. Text after a prompt that ends in text is tokenized together with it;
        the score then covers the tokens from the first one that differs from the prompt's own. Where that is the very
        first one, for any of them, all are scored whole, as prompt and continuation without a prompt.
    logprobs: k >= 0 wants the k likeliest tokens at every scored position as well.
    """

    prompt: Prompt
    continuations: list[str | list[int]]
    logprobs: int = 0
    allow_control_tokens: bool = False
    cache_salt: str = ""
    priority: int = 0
    request_id: str | None = None


def to_submit(request: GenerateRequest, *, vocab_size: int, namespace_prefix: str = "") -> Submit:
    """The checked message for a request; draws its id and its seed where the caller gave none.

    `namespace_prefix` separates the cached prefixes of API keys. Raises InvalidRequest naming the field.
    """
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequest("Give exactly one of prompt and messages.", "prompt")
    _check_options(request)
    chat = _chat(request)
    submit = Submit(
        request_id=_request_id(request.request_id),
        sampling=_sampling(request, vocab_size),
        prompt=None if request.prompt is None else prompt_runs(request.prompt, vocab_size),
        chat=chat,
        n=request.n,
        wanted=_wanted(request),
        stop=[request.stop] if isinstance(request.stop, str) else request.stop,
        include_stop=request.include_stop,
        echo=request.echo,
        skip_special_tokens=request.skip_special_tokens,
        allow_control_tokens=request.allow_control_tokens,
        namespace=_namespace(namespace_prefix, request.cache_salt),
        priority=request.priority,
        constraint=_constraint(request, chat),
    )
    check_encodable(msgspec.structs.asdict(request))
    return submit


def score_to_submit(request: ScoreRequest, *, vocab_size: int, namespace_prefix: str = "") -> Submit:
    """The checked message for a scoring request. Raises InvalidRequest naming the field."""
    _between("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    _between("priority", request.priority, -(2**31), 2**31 - 1)
    count = len(request.continuations)
    if not 1 <= count <= MAX_CONTINUATIONS:
        raise InvalidRequest(f"continuations must hold 1 to {MAX_CONTINUATIONS} items, not {count}.", "continuations")
    for i, continuation in enumerate(request.continuations):
        if not continuation:
            raise InvalidRequest(f"continuations[{i}] is empty; there is nothing to score.", f"continuations[{i}]")
        if not isinstance(continuation, str):
            _check_ids(f"continuations[{i}]", continuation, vocab_size)
    submit = Submit(
        request_id=_request_id(request.request_id),
        sampling=Sampling(max_tokens=0, seed=0, temperature=0.0),
        prompt=prompt_runs(request.prompt, vocab_size, may_be_empty=True),
        score=request.continuations,
        wanted=Wanted("logprobs", 0, request.logprobs),
        allow_control_tokens=request.allow_control_tokens,
        namespace=_namespace(namespace_prefix, request.cache_salt),
        priority=request.priority,
    )
    check_encodable(msgspec.structs.asdict(request))
    return submit


def prompt_runs(prompt: Prompt, vocab_size: int, *, may_be_empty: bool = False) -> list[str | list[int]]:
    """A prompt as runs: neighbouring texts joined, neighbouring ids in one list, nothing empty.

    Raises InvalidRequest, also where there are none, unless it `may_be_empty`.
    """
    runs: list[str | list[int]] = []
    items = [prompt] if isinstance(prompt, str) else prompt
    for i, item in enumerate(items):
        if isinstance(item, list):
            _check_ids(f"prompt[{i}]", item, vocab_size)
        elif isinstance(item, int) and not 0 <= item < vocab_size:
            _check_ids(f"prompt[{i}]", [item], vocab_size)
    filled = (item for item in items if item not in ("", []))
    for is_text, neighbours in groupby(filled, lambda item: isinstance(item, str)):  # adding up one by one is quadratic
        if is_text:
            runs.append("".join(cast(Iterator[str], neighbours)))
        else:
            lists = ([item] if isinstance(item, int) else cast(list[int], item) for item in neighbours)
            runs.append(list(chain.from_iterable(lists)))
    if not runs and not may_be_empty:
        raise InvalidRequest("prompt is empty; it must hold at least one token.", "prompt")
    return runs


def _wanted(request: GenerateRequest) -> Wanted | None:
    """What is asked of the prompt's positions."""
    if request.prompt_logprobs is None:
        return None
    return Wanted("logprobs", request.logprob_start, request.prompt_logprobs)


def _check_options(request: GenerateRequest) -> None:
    """What is neither part of Sampling nor of the prompt."""
    _between("n", request.n, 1, MAX_SAMPLES)
    _between("priority", request.priority, -(2**31), 2**31 - 1)
    _between("logprob_start", request.logprob_start, 0, MAX_TOKENS)
    if request.prompt_logprobs is not None:
        _between("prompt_logprobs", request.prompt_logprobs, 0, MAX_LOGPROBS)
    elif request.logprob_start:
        raise InvalidRequest("logprob_start needs prompt_logprobs.", "logprob_start")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop may hold {MAX_STOPS} strings at most, not {len(stops)}.", "stop")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise InvalidRequest(f"stop may hold strings of {MAX_STOP_CHARACTERS} characters at most.", "stop")
    if "" in stops:
        raise InvalidRequest("stop must not hold an empty string.", "stop")


def _sampling(request: GenerateRequest, vocab_size: int) -> Sampling:
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = -1 if request.prompt is None else DEFAULT_MAX_TOKENS
    else:
        _between("max_tokens", max_tokens, 0, MAX_TOKENS)
    _between("min_tokens", request.min_tokens, 0, MAX_TOKENS)
    if 0 <= max_tokens < request.min_tokens:
        raise InvalidRequest(f"min_tokens {request.min_tokens} is above max_tokens {max_tokens}.", "min_tokens")
    _between("temperature", request.temperature, 0.0, 100.0)
    _between("top_k", request.top_k, -1, MAX_TOKENS)
    _between("top_p", request.top_p, 0.0, 1.0, above=True)
    _between("min_p", request.min_p, 0.0, 1.0)
    _between("repetition_penalty", request.repetition_penalty, 0.01, 100.0)  # logits divided by it must stay finite
    _between("presence_penalty", request.presence_penalty, -2.0, 2.0)
    _between("frequency_penalty", request.frequency_penalty, -2.0, 2.0)
    _check_ids("logit_bias", list(request.logit_bias), vocab_size)
    for token_id, bias in request.logit_bias.items():
        _between(f"logit_bias.{token_id}", bias, -100.0, 100.0)
    _check_ids("stop_token_ids", request.stop_token_ids, vocab_size)
    if request.logprobs is not None:
        _between("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    return Sampling(
        max_tokens=max_tokens,
        seed=_seed(request.seed),
        min_tokens=request.min_tokens,
        temperature=request.temperature if request.temperature >= GREEDY_BELOW else 0.0,
        top_k=0 if request.top_k < 0 else min(request.top_k, vocab_size),
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=request.logit_bias,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        logprobs=request.logprobs,
    )


def _chat(request: GenerateRequest) -> Chat | None:
    if request.messages is None:
        for field in _CHAT_FIELDS:
            if getattr(request, field):
                raise InvalidRequest(f"{field} needs messages; it has no meaning for a prompt.", field)
        return None
    if request.echo:
        raise InvalidRequest("echo needs a prompt; it has no meaning for messages.", "echo")
    add_generation_prompt = request.add_generation_prompt
    if add_generation_prompt is None:
        add_generation_prompt = not request.continue_final_message
    elif add_generation_prompt and request.continue_final_message:
        raise InvalidRequest("continue_final_message excludes add_generation_prompt.", "continue_final_message")
    check_chat(request.messages, request.tools)
    tool_choice, tool_name = check_tool_choice(request.tools, request.tool_choice, request.parallel_tool_calls)
    return Chat(
        messages=request.messages,
        tools=request.tools or None,
        tool_choice=tool_choice,
        tool_name=tool_name,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=request.continue_final_message,
        template_kwargs=request.template_kwargs,
        allow_control_tokens=request.allow_control_tokens,
    )


def _constraint(request: GenerateRequest, chat: Chat | None) -> Constraint | None:
    """What the completion must match. Of tools only the options: the tokenizer knows how the model writes its calls."""
    constraint = requested_constraint(request)
    calls_tools = chat is not None and chat.tool_choice != "none"
    if constraint is None and not calls_tools:
        refuse_options(request)
        return None
    what = constraint.kind if constraint is not None else "tools"
    if constraint is not None and calls_tools:
        text = f"{what} and tools exclude each other: a completion matches one or calls the other"
        raise InvalidRequest(f'{text}; tool_choice "none" only shows the tools.', what)
    for field in ("ignore_eos", "min_tokens"):
        if getattr(request, field):
            raise InvalidRequest(f"{field} and {what} exclude each other: the constraint says where to end.", field)
    return tool_options(request) if constraint is None else constraint


def _between(field: str, value: float, lowest: float, highest: float, *, above: bool = False) -> None:
    """Written so that NaN fails too. `above`: the lowest value itself is not allowed."""
    if not (lowest <= value <= highest) or (above and value == lowest):
        bounds = f"above {lowest} and at most {highest}" if above else f"between {lowest} and {highest}"
        shown = value if isinstance(value, float) or abs(value) < 10**20 else "a number of more than 20 digits"
        raise InvalidRequest(f"{field} must be {bounds}, not {shown}.", field)


def _check_ids(field: str, ids: list[int], vocab_size: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidRequest(f"{field} holds token id {bad}; this model's ids are 0 to {vocab_size - 1}.", field)


def _seed(seed: int | None) -> int:
    """A seed in [0, 2^63), the range that every part downstream can hold."""
    if seed is None:
        return secrets.randbits(63)
    _between("seed", seed, -(2**63), 2**64 - 1)
    return seed % 2**63


def _namespace(prefix: str, salt: str) -> str:
    if len(salt) > MAX_NAME:
        raise InvalidRequest(f"cache_salt may have {MAX_NAME} characters at most, not {len(salt)}.", "cache_salt")
    return f"{prefix}\0{salt}" if prefix else salt


def _request_id(given: str | None) -> str:
    if given is None:
        return uuid.uuid4().hex
    if not 0 < len(given) <= MAX_NAME:
        raise InvalidRequest(f"request_id must have 1 to {MAX_NAME} characters, not {len(given)}.", "request_id")
    if not (given.isascii() and given.isprintable()):  # it goes into a header and into the log
        raise InvalidRequest("request_id must be of printable ASCII characters.", "request_id")
    return given
