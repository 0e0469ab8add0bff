"""What a caller may ask for: at once the native HTTP bodies, the keyword arguments of `Engine`, and what the OpenAI
endpoints map to.

With `runtime.sampling.params` this is the one declaration of a request; `front.requests.params` checks it. It must
import nothing heavy: the language and the command line are made of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ....constrained.spec import MAX_STRING, MAX_WHITESPACE, Constraint
from ....runtime.declaration import Field, declared
from ....runtime.sampling.params import MAX_LOGPROBS, MAX_TOKENS, SamplingParams

MAX_SAMPLES = 128
LOWEST_PRIORITY, HIGHEST_PRIORITY = -(2**31), 2**31 - 1

Prompt = str | list[str | int | list[int]]
Schema = dict[str, Any] | bool | str
_DEFAULTS = Constraint("json_object")


class CompletionFields(SamplingParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to complete a prompt or a conversation: how to choose tokens, where to end, and what the completion must
    match. At most one of json_schema, json_object, regex, ebnf, choice and structural_tag may be given."""

    n: Annotated[
        int,
        Field("completions; sample i uses a seed derived from (seed, i)", lowest=1, highest=MAX_SAMPLES),
    ] = 1
    stop: Annotated[str | list[str], Field("end before this text", metavar="TEXT")] = msgspec.field(
        default_factory=list
    )
    include_stop: Annotated[
        bool,
        Field(
            "what ended the completion stays in it",
            elsewhere=("include_stop_str_in_output", "no_stop_trim"),
            language=False,
        ),
    ] = False
    skip_special_tokens: Annotated[bool, Field("control tokens have no text in the completion", language=False)] = True
    allow_control_tokens: Annotated[
        bool,
        Field(
            "text that looks like a control token becomes one; unsafe with text from strangers",
            language=False,
        ),
    ] = False
    cache_salt: Annotated[
        str, Field("only requests of the same salt share cached prefixes", elsewhere=("extra_key",), language=False)
    ] = ""
    cache_prompt: Annotated[
        bool,
        Field("false: nothing cached is used, and what is computed is shared with no other request", language=False),
    ] = True
    explain_cache: Annotated[
        bool,
        Field("the answer says where the prompt left the cached path, and why", language=False),
    ] = False
    return_token_ids: Annotated[
        bool,
        Field("the answer has the ids of its tokens, and of the prompt's", language=False),
    ] = False
    priority: Annotated[
        int,
        Field("higher goes first", lowest=LOWEST_PRIORITY, highest=HIGHEST_PRIORITY, language=False),
    ] = 0
    json_schema: Annotated[
        Schema | None,
        Field(
            "a JSON Schema (Draft 2020-12), as an object, as true or false, or as JSON text; the completion is a JSON "
            "document that it accepts",
            elsewhere=("guided_json",),
        ),
    ] = None
    json_object: Annotated[bool, Field("true wants any JSON object", language=False)] = False
    regex: Annotated[str | None, Field("a pattern that the whole completion matches", elsewhere=("guided_regex",))] = (
        None
    )
    ebnf: Annotated[
        str | None,
        Field("a grammar in GBNF style, whose start rule is `root`", elsewhere=("guided_grammar", "grammar")),
    ] = None
    choice: Annotated[
        list[str] | None,
        Field("a list of texts; the completion is one of them", elsewhere=("guided_choice",), language=False),
    ] = None
    structural_tag: Annotated[
        dict[str, Any] | None,
        Field("free text with constrained spans, see `constrained.grammar.structural_tag`", language=False),
    ] = None
    strict: Annotated[
        bool,
        Field(
            "what no grammar enforces is refused; false relaxes it instead, and the answer says so (`relaxed`)",
            language=False,
        ),
    ] = _DEFAULTS.strict
    grammar_engine: Annotated[
        Literal["auto", "llguidance", "xgrammar"],
        Field('"auto" picks one that enforces everything; a named one is used, or it is refused', language=False),
    ] = _DEFAULTS.engine
    max_whitespace: Annotated[
        int | None,
        Field(
            "most whitespace characters between two tokens of JSON; 0, or None, is compact JSON",
            lowest=0,
            highest=MAX_WHITESPACE,
            language=False,
        ),
    ] = None
    max_string: Annotated[
        int | None,
        Field(
            "most characters of a JSON string that the schema does not bound; 0 is no bound, None means "
            f"{_DEFAULTS.max_string}",
            lowest=0,
            highest=MAX_STRING,
            language=False,
        ),
    ] = None
    extra_properties: Annotated[
        bool,
        Field(
            "where a schema names properties and says nothing of others, the completion may have others: small models "
            "then seldom find an end",
            language=False,
        ),
    ] = _DEFAULTS.extra_properties


class GenerateRequest(CompletionFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt (or conversation) and how to complete it. Exactly one of `prompt` and `messages` is given.

    prompt: text, token ids, or a list mixing both; neighbouring texts are joined, neighbouring ids are one run.
    messages, tools, template_kwargs: a conversation as OpenAI has it, for the model's chat template.
    tool_choice: whether the completion may call the tools: "auto" (None means that), "required", a named one, or "none"
        (they are only shown). parallel_tool_calls: whether it may call several; None means yes.
    add_generation_prompt: open the assistant's turn at the end; None means: unless `continue_final_message`.
    continue_final_message: leave the last message open, so that the completion continues it.
    echo: the text starts with the prompt's text. prediction: what the completion is likely to say (a text with few
        changes, say): it is then computed faster, and never differs.
    max_tokens: None means 128 for a prompt and what the context leaves for messages. 0 computes and caches the prompt.
    prompt_logprobs: as logprobs, for the prompt's tokens from position `logprob_start` on (position 0 has none).
    reasoning_effort: how hard a model that thinks before it answers is to think: none, minimal, low, medium, high or
        xhigh, as far as its template knows such words. enable_thinking: whether it is to. None leaves both to the
        template.
    thinking_budget: after so many tokens of thinking the answer begins.
    separate_reasoning: what it thinks is told from its text; else it stays there, marks and all. include_reasoning:
        what was told from it is shown.
    """

    prompt: Annotated[
        Prompt | None, Field("what to complete", elsewhere=("text", "input_ids"), openai=False, language=False)
    ] = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[
        int | None,
        Field("most tokens of thinking", lowest=0, highest=MAX_TOKENS, openai=False, language=False),
    ] = None
    separate_reasoning: bool = True
    include_reasoning: bool = True
    prompt_logprobs: Annotated[
        int | None,
        Field(
            "as logprobs, for the prompt's tokens",
            lowest=0,
            highest=MAX_LOGPROBS,
            openai=False,
            language=False,
        ),
    ] = None
    logprob_start: Annotated[
        int,
        Field("the first position of prompt_logprobs", lowest=0, highest=MAX_TOKENS, openai=False, language=False),
    ] = 0
    echo: bool = False
    prediction: str | None = None
    request_id: Annotated[
        str | None, Field("the request's name, for answers and log", elsewhere=("rid",), openai=False, language=False)
    ] = None


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How likely the model finds each of several continuations of one prompt.

    prompt: as in GenerateRequest; an empty one stands for the start of a text: the model's BOS token or, where it has
        none, its end-of-text token. The log-probabilities are then unconditional.
    continuations: texts or lists of token ids. Text after a prompt that ends in text is tokenized together with it;
        the score then covers the tokens from the first one that differs from the prompt's own. Where that is the very
        first one, for any of them, all are scored whole, as prompt and continuation without a prompt.
    logprobs: k >= 0 wants the k likeliest tokens at every scored position as well.
    """

    prompt: Annotated[Prompt, Field("what comes before", elsewhere=("text", "input_ids"))]
    continuations: list[str | list[int]]
    logprobs: Annotated[int, Field("the likeliest tokens at every scored position", lowest=0, highest=MAX_LOGPROBS)] = 0
    allow_control_tokens: bool = False
    cache_salt: str = ""
    priority: Annotated[int, Field("higher goes first", lowest=LOWEST_PRIORITY, highest=HIGHEST_PRIORITY)] = 0
    request_id: str | None = None


_FIELDS = "\n".join(f"    {name}: {field.help}." for name, field in declared(CompletionFields).items())
GenerateRequest.__doc__ = f"{(GenerateRequest.__doc__ or '').rstrip()}\n\n    And of a completion:\n\n{_FIELDS}\n"
