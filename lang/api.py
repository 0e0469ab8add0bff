"""The words of the language, as functions. Everything here is reachable as `sapwood.NAME`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from ..runtime.sampling.params import SamplingOptions
from .errors import ProgramMisuse
from .ir import Concat, Content, Gen, RoleBegin, RoleEnd, Select, SeparateReasoning, flatten
from .program import Program
from .state.program_state import ProgramState
from .tracing.trace import Trace
from .words.choices import ChoicesMethod, check_choices, token_length_normalized
from .words.naming import naming
from .words.options import gen_options, stop_texts
from .words.python_types import pattern_of, schema_of
from .words.reasoning import tags_of
from .words.roles import in_role

P = ParamSpec("P")
R = TypeVar("R")


@overload
def function(f: Callable[Concatenate[ProgramState, P], R]) -> Program[P, R]: ...
@overload
def function() -> Callable[[Callable[Concatenate[ProgramState, P], R]], Program[P, R]]: ...


def function(f: Any = None) -> Any:
    """A decorator that makes a program of a function whose first parameter is a `ProgramState`, by custom named `s`.

    Raises ProgramMisuse for a function without one, a method, and a generator function (one with a `yield`).
    """
    return Program if f is None else Program(f)


@naming
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    n: int | None = None,
    dtype: type[int] | type[float] | type[bool] | type[str] | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    ebnf: str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    **sampling: Unpack[SamplingOptions],
) -> Gen | Select:
    """Let the model go on from here; what it says is the value of the variable `name`.

    Arguments that are not given are as the run says (`Program.run`), and otherwise the backend's own defaults. They
    are explained at `managers.front.requests.request_fields.GenerateRequest`; these are not there:

    n: more than one sample makes the value a list; the state goes on with the first.
    name: a later gen or select of the same name takes the variable over; the text of both stays.
    dtype: int, float, bool, or str (in quotes): the value has this form, and is text nevertheless: int(s["age"]). A
        number has at most 19 digits, and 10 behind the point.
    json_schema: a schema, a pydantic model, or a type such as a dataclass or TypedDict: the value is such JSON.
    regex, ebnf: the value matches. Of these three and dtype one may be given.
    choices: makes it a `select` with `choices_method`; no other argument is taken then.

    Raises ProgramMisuse for what excludes each other, and for values of the wrong type.
    """
    _check_name("gen", name)
    if isinstance(max_tokens, str):
        text = f"write s += {max_tokens!r} + gen({name!r}) for text before it"
        raise ProgramMisuse(f"gen takes a name and then max_tokens, a whole number, not {max_tokens!r}; {text}.")
    arguments = {**locals(), **sampling}
    given = {each: value for each, value in arguments.items() if value is not None and each not in ("name", "sampling")}
    if choices is not None:
        others = sorted(
            given.keys() - {"choices", "choices_method"} - _allowed_with_choices(sampling.get("temperature"))
        )
        if others:
            raise ProgramMisuse(f"choices make gen a select, which takes no {', '.join(others)}.")
        return select(name, choices, choices_method=choices_method or token_length_normalized)
    if choices_method is not None:
        raise ProgramMisuse("choices_method needs choices.")
    forms = [each for each in ("dtype", "regex", "json_schema", "ebnf") if each in given]
    if len(forms) > 1:
        raise ProgramMisuse(f"{' and '.join(forms)} exclude each other; give one.")
    if given.pop("dtype", None) is not None:
        given["regex"], stops = pattern_of(dtype)
        given["stop"] = (*stops, *(() if stop is None else stop_texts(stop))) or None
    if json_schema is not None:
        given["json_schema"] = schema_of(json_schema)
    return Gen(name, gen_options(**given))


def gen_int(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Gen | Select:
    """`gen` with dtype int."""
    return gen(name, max_tokens, dtype=int, **options)


def gen_string(name: str | None = None, max_tokens: int | None = None, **options: Any) -> Gen | Select:
    """`gen` with dtype str: the value is in double quotes."""
    return gen(name, max_tokens, dtype=str, **options)


@naming
def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod = token_length_normalized,
) -> Select:
    """Let the model choose one of `choices`; the choice is the value of the variable `name`, and is added to the state.

    All choices are scored in one request, as continuations of the state. The methods (`sapwood.NAME` is the name as
    text) are defined in `choices`: token_length_normalized, total_likelihood, greedy_token_selection,
    unconditional_likelihood_normalized. A choice is certain: `temperature` must be 0. Raises ProgramMisuse.
    """
    _check_name("select", name)
    if choices is None:
        raise ProgramMisuse("select needs choices.")
    if temperature > 1e-5:
        raise ProgramMisuse(f"select takes the best choice; temperature must be 0, not {temperature}.")
    return Select(name, check_choices(choices, choices_method), choices_method)


def system(expr: Content | None = None) -> Concat:
    """A system message."""
    return in_role("system", expr or "")


def user(expr: Content | None = None) -> Concat:
    """A user's message."""
    return in_role("user", expr or "")


def assistant(expr: Content | None = None) -> Concat:
    """An assistant's message."""
    return in_role("assistant", expr or "")


def system_begin() -> RoleBegin:
    return RoleBegin("system")


def system_end() -> RoleEnd:
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    return RoleBegin("user")


def user_end() -> RoleEnd:
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    return RoleEnd("assistant")


def separate_reasoning(expr: Content, model_type: str) -> Concat:
    """The expression with each `gen` in it answering without its reasoning, which is in NAME_reasoning_content.

    model_type: how the model marks its reasoning, one of `reasoning.TAGS`. The state goes on with the answer only.
    Raises ProgramMisuse for an unknown model type, and for a `gen` without a name.
    """
    tags = tags_of(model_type)
    parts = []
    for part in flatten(expr):
        if isinstance(part, Gen):
            if part.name is None:
                raise ProgramMisuse("separate_reasoning needs a gen with a name.")
            if (part.options.n or 1) > 1:
                raise ProgramMisuse("separate_reasoning takes one sample; n must be 1.")
            part = SeparateReasoning(part, tags)
        parts.append(part)
    return Concat(tuple(parts))


def _check_name(word: str, name: object) -> None:
    """Raise ProgramMisuse where something else stands in the name's place."""
    if name is not None and not isinstance(name, str):
        hint = f'; write select("name", {name!r})' if word == "select" and isinstance(name, list | tuple) else ""
        raise ProgramMisuse(f"{word} takes the name of a variable first, which is text, not {name!r}{hint}.")


def _allowed_with_choices(temperature: float | None) -> set[str]:
    """A temperature of 0 says what select does anyway."""
    return {"temperature"} if temperature == 0 else set()


def trace(program: Program[..., Any], *args: Any, **kwargs: Any) -> Trace:
    """The program's dependency graph: `print` it for text, `.svg()` for a picture. See `Program.trace`."""
    return program.trace(*args, **kwargs)
