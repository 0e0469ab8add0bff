"""The checks at the door: from what a caller asks for (`request_fields`) to the message that goes in.

Everything downstream trusts what leaves here. A value that is out of range is refused by the name of its field, never
bent into shape.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from itertools import chain, groupby
from typing import Any, cast

import msgspec

from ....constrained.spec import Constraint
from ....runtime.sampling.params import DEFAULT_MAX_TOKENS, Sampling
from ....runtime.sampling.recommendation import DEFAULTED, OPENAI_DEFAULTS, SamplingDefaults
from ....runtime.wanted import Wanted
from ...wire.errors import InvalidRequest
from ...wire.lifecycle import ReasoningInfo
from ...wire.requests import Chat, Submit
from .bodies import check_encodable
from .chats import check_chat
from .constraints import refuse_options, requested_constraint, tool_options
from .ranges import check_ids, check_ranges
from .reasoning_fields import NAMES, reasoning_options
from .request_fields import GenerateRequest, Prompt, ScoreRequest
from .tool_fields import calls_as_functions, check_tool_choice, custom_formats, tools_as_functions

MAX_CONTINUATIONS = 1024
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 256  # every token of every stream is looked through for them
MAX_NAME = 256
GREEDY_BELOW = 1e-5  # dividing logits by less than this overflows float32; such a temperature is greedy

_CHAT_FIELDS = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "add_generation_prompt",
    "continue_final_message",
    "template_kwargs",
    *NAMES,
)


def to_submit(
    request: GenerateRequest,
    *,
    vocab_size: int,
    defaults: SamplingDefaults,
    id_prefix: str = "",
    reasoning: ReasoningInfo | None = None,
) -> Submit:
    """The checked message for a request; draws its id, after `id_prefix`, and its seed where the caller gave none.

    defaults: how tokens are chosen where the request does not say (`FrontInfo.sampling`).
    reasoning: what the model can do about thinking; what it cannot is then refused, and else has no effect.
    Raises InvalidRequest naming the field.
    """
    if (request.prompt is None) == (request.messages is None):
        raise InvalidRequest(["Give exactly one of ", ("prompt",), " and ", ("messages",), "."], "prompt")
    check_ranges(request, vocab_size)
    _check_salt(request.cache_salt)
    _check_options(request)
    chat = _chat(request, vocab_size, reasoning)
    submit = Submit(
        request_id=checked_request_id(request.request_id, id_prefix),
        sampling=_sampling(request, vocab_size, defaults),
        prompt=None if request.prompt is None else prompt_runs(request.prompt, vocab_size),
        chat=chat,
        n=request.n,
        wanted=_wanted(request),
        stop=[request.stop] if isinstance(request.stop, str) else request.stop,
        include_stop=request.include_stop,
        echo=request.echo,
        skip_special_tokens=request.skip_special_tokens,
        allow_control_tokens=request.allow_control_tokens,
        namespace=request.cache_salt if request.cache_prompt else f"{request.cache_salt}:{uuid.uuid4().hex}",
        priority=request.priority,
        constraint=_constraint(request, chat),
        explain_cache=request.explain_cache,
        tells_prompt=request.return_token_ids,
        prediction=request.prediction or "",
    )
    check_encodable(msgspec.structs.asdict(request))
    return submit


def score_to_submit(request: ScoreRequest, *, vocab_size: int, id_prefix: str = "") -> Submit:
    """The checked message for a scoring request. Raises InvalidRequest naming the field."""
    check_ranges(request, vocab_size)
    _check_salt(request.cache_salt)
    count = len(request.continuations)
    if not 1 <= count <= MAX_CONTINUATIONS:
        raise InvalidRequest.about(("continuations",), f"must hold 1 to {MAX_CONTINUATIONS} items, not {count}.")
    for i, continuation in enumerate(request.continuations):
        if not continuation:
            raise InvalidRequest.about(("continuations", i), "is empty; there is nothing to score.")
        if not isinstance(continuation, str):
            check_ids(("continuations", i), continuation, vocab_size)
    submit = Submit(
        request_id=checked_request_id(request.request_id, id_prefix),
        sampling=Sampling(max_tokens=0, seed=0, temperature=0.0),
        prompt=prompt_runs(request.prompt, vocab_size, may_be_empty=True),
        score=request.continuations,
        wanted=Wanted("logprobs", 0, request.logprobs),
        allow_control_tokens=request.allow_control_tokens,
        namespace=request.cache_salt,
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
            check_ids(("prompt", i), item, vocab_size)
        elif isinstance(item, int) and not 0 <= item < vocab_size:
            check_ids(("prompt", i), [item], vocab_size)
    filled = (item for item in items if item not in ("", []))
    for is_text, neighbours in groupby(filled, lambda item: isinstance(item, str)):  # adding up one by one is quadratic
        if is_text:
            runs.append("".join(cast(Iterator[str], neighbours)))
        else:
            lists = ([item] if isinstance(item, int) else cast(list[int], item) for item in neighbours)
            runs.append(list(chain.from_iterable(lists)))
    if not runs and not may_be_empty:
        raise InvalidRequest.about(("prompt",), "is empty; it must hold at least one token.")
    return runs


def _wanted(request: GenerateRequest) -> Wanted | None:
    """What is asked of the prompt's positions."""
    if request.prompt_logprobs is None:
        return None
    return Wanted("logprobs", request.logprob_start, request.prompt_logprobs)


def _check_options(request: GenerateRequest) -> None:
    """What one field's range does not say."""
    if request.prompt_logprobs is None and request.logprob_start:
        raise InvalidRequest([("logprob_start",), " needs ", ("prompt_logprobs",), "."], "logprob_start")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop
    if len(stops) > MAX_STOPS:
        raise InvalidRequest.about(("stop",), f"may hold {MAX_STOPS} strings at most, not {len(stops)}.")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise InvalidRequest.about(("stop",), f"may hold strings of {MAX_STOP_CHARACTERS} characters at most.")
    if "" in stops:
        raise InvalidRequest.about(("stop",), "must not hold an empty string.")


def _sampling(request: GenerateRequest, vocab_size: int, defaults: SamplingDefaults) -> Sampling:
    """The checked request's sampling fields, those with several spellings of one meaning in one of them."""
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = -1 if request.prompt is None else DEFAULT_MAX_TOKENS
    if 0 <= max_tokens < request.min_tokens:
        above = [("min_tokens",), f" {request.min_tokens} is above ", ("max_tokens",), f" {max_tokens}."]
        raise InvalidRequest(above, "min_tokens")
    resolved = {
        "max_tokens": max_tokens,
        "seed": secrets.randbits(63) if request.seed is None else request.seed % 2**63,
        **_choice(request, vocab_size, defaults),
    }
    as_given = {name: getattr(request, name) for name in Sampling.__struct_fields__}
    return Sampling(**{**as_given, **resolved})


def _choice(request: GenerateRequest, vocab_size: int, defaults: SamplingDefaults) -> dict[str, Any]:
    """The fields that say which token is chosen: the request's own, each, and the recommended ones where it has none.

    Who asks for temperature 0 wants the likeliest token, of what the request itself says of likelihoods.
    """
    given = {name: value for name in DEFAULTED if (value := getattr(request, name)) is not None}
    asks_greedy = _is_greedy({"temperature": 1.0, "top_p": 1.0, **given})
    chosen = {**(OPENAI_DEFAULTS if asks_greedy else defaults).values(), **given}
    if _is_greedy(chosen):
        chosen |= {"temperature": 0.0, "top_p": chosen["top_p"] or 1.0}
    chosen["top_k"] = 0 if chosen["top_k"] < 0 else min(chosen["top_k"], vocab_size)
    return chosen


def _is_greedy(sampling: dict[str, Any]) -> bool:
    return sampling["temperature"] < GREEDY_BELOW or sampling["top_p"] == 0


def _chat(request: GenerateRequest, vocab_size: int, reasoning: ReasoningInfo | None) -> Chat | None:
    if request.messages is None:
        for field in _CHAT_FIELDS:
            if getattr(request, field):
                raise InvalidRequest.about((field,), "needs messages; it has no meaning for a prompt.")
        return None
    if request.echo:
        raise InvalidRequest.about(("echo",), "needs a prompt; it has no meaning for messages.")
    add_generation_prompt = request.add_generation_prompt
    if add_generation_prompt is None:
        add_generation_prompt = not request.continue_final_message
    elif add_generation_prompt and request.continue_final_message:
        raise InvalidRequest.about(("continue_final_message",), "excludes add_generation_prompt.")
    check_chat(request.messages, request.tools, request.template_kwargs, vocab_size)
    choice = check_tool_choice(request.tools, request.tool_choice, request.parallel_tool_calls)
    return Chat(
        messages=calls_as_functions(request.messages),
        tools=tools_as_functions(request.tools),
        custom=custom_formats(request.tools),
        tool_choice=choice.mode,
        allowed=choice.allowed,
        parallel_tool_calls=not choice.once,
        max_string=request.max_string or 0,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=request.continue_final_message,
        template_kwargs=request.template_kwargs,
        allow_control_tokens=request.allow_control_tokens,
        reasoning=reasoning_options(
            request, reasoning, separate=request.separate_reasoning, include=request.include_reasoning
        ),
    )


def _constraint(request: GenerateRequest, chat: Chat | None) -> Constraint | None:
    """What the completion must match; with tools to call, what it must match where it calls none.

    Of tools only the options: the tokenizer process knows how the model writes its calls.
    """
    calls_tools = chat is not None and chat.tool_choice != "none"
    constraint = requested_constraint(request, with_tools=calls_tools)
    if constraint is None and not calls_tools:
        refuse_options(request)
        return None
    what = constraint.kind if constraint is not None else "tools"
    if constraint is not None and constraint.kind == "structural_tag" and calls_tools:
        text = " exclude each other: both say what may come between free text; "
        choice = ("tool_choice",)
        raise InvalidRequest([(what,), " and ", ("tools",), text, choice, ' "none" only shows the tools.'], what)
    for field in ("ignore_eos", "min_tokens"):
        if getattr(request, field):
            text = " exclude each other: the constraint says where to end."
            raise InvalidRequest([(field,), " and ", (what,), text], field)
    return tool_options(request) if constraint is None else constraint


def _check_salt(salt: str) -> None:
    if len(salt) > MAX_NAME:
        raise InvalidRequest.about(("cache_salt",), f"may have {MAX_NAME} characters at most, not {len(salt)}.")


def checked_request_id(given: str | None, prefix: str) -> str:
    """The request's id, or a new one after the prefix. Raises InvalidRequest."""
    if given is None:
        return f"{prefix}{uuid.uuid4().hex}"
    if not 0 < len(given) <= MAX_NAME:
        raise InvalidRequest.about(("request_id",), f"must have 1 to {MAX_NAME} characters, not {len(given)}.")
    if not (given.isascii() and given.isprintable()):  # it goes into a header and into the log
        raise InvalidRequest.about(("request_id",), "must be of printable ASCII characters.")
    return given
