"""`Program`: what the decorator `function` makes of a Python function, and the ways to run it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from ..constrained.near_names import probably_meant
from ..runtime.declaration import declared
from ..runtime.sampling.params import DEFAULT_MAX_TOKENS, SamplingParams
from .defaults import chosen_backend
from .errors import ProgramMisuse
from .ir import GenOptions
from .running.batch import run_all
from .running.loop import in_event_loop
from .running.run import Run, inside
from .state.branch import Branch
from .state.program_state import ProgramState
from .tracing.trace import Trace, TraceBackend, stand_ins
from .words.options import gen_options

if TYPE_CHECKING:
    from .defaults import AnyBackend

P = ParamSpec("P")
R = TypeVar("R")
Arguments = Mapping[str, Any] | Sequence[Any]

_ALIASES = {other: name for name, field in declared(SamplingParams).items() for other in field.elsewhere}
_NOT_FOR_RUNS = frozenset({"regex", "json_schema", "ebnf"})  # each says what one `gen` is for
RUN_OPTIONS = frozenset(GenOptions.__struct_fields__) - _NOT_FOR_RUNS
"""The arguments of `gen` that a run may give defaults for."""


@dataclass(frozen=True)
class _ProgramCall:
    """A call of a program's function. function: calls it with the state of the branch, and its arguments."""

    run: Run
    branch: Branch
    state: ProgramState
    function: Callable[[], Any]


class Program(Generic[P, R]):
    """A function of a ProgramState and of arguments, `def` or `async def`. Calling it is running it on the default
    backend.

    Everywhere below, keyword arguments that the function does not have are defaults for every `gen` in it:
    max_tokens (128 unless given), temperature, top_p, stop and so on, as `gen` has them. What neither says of sampling
    is as the model recommends (`Engine(sampling_defaults="openai")`: temperature 1 and nothing else).
    """

    def __init__(self, function: Callable[Concatenate[ProgramState, P], R], bound: Mapping[str, Any] = {}) -> None:
        """bound: arguments that are given already. Raises ProgramMisuse for a function that can be no program."""
        functools.update_wrapper(self, function)
        self.function = function
        self.name = getattr(function, "__name__", "program")
        self._bound = dict(bound)
        self._signature = inspect.signature(function)
        first, *self._parameters = self._signature.parameters or [""]
        if not first:
            raise ProgramMisuse(f"{self.name} takes no argument; a program's first one is its state, `s`.")
        if first in ("self", "cls"):
            text = "methods cannot be programs; write a function whose first argument is its state, `s`"
            raise ProgramMisuse(f"{self.name} is a method (its first argument is {first!r}); {text}.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            text = "a program adds what it says to its state (`s += …`), and may return a value"
            raise ProgramMisuse(f"{self.name} has a `yield` in it, so calling it would do nothing; {text}.")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ProgramState:
        """Run it on the default backend; see `run`."""
        return self.run(*args, **kwargs)

    def run(self, *args: Any, backend: AnyBackend | None = None, stream: bool = False, **kwargs: Any) -> ProgramState:
        """Run it to its end, and return its state.

        stream: return at once; the function runs in a thread of its own, and its texts come piece by piece
            (`ProgramState.text_iter`). What goes wrong then is raised wherever the state is read.

        Raises what the function raises, and ProgramError where a step failed that the function did not look at.
        """
        call = self._prepare(args, kwargs, backend, stream=stream)
        if stream:
            _in_thread(lambda: _run_quietly(call))
        elif self._is_async and in_event_loop():
            _in_thread(lambda: _run_body(call)).result()
        else:
            _run_body(call)
        return call.state

    async def arun(
        self, *args: Any, backend: AnyBackend | None = None, stream: bool = False, **kwargs: Any
    ) -> ProgramState:
        """`run` for an event loop: an `async def` program runs in it, another one in a thread.

        Cancelling it aborts the program's requests; whatever a thread still asks for raises ProgramCancelled.
        """
        call = self._prepare(args, kwargs, backend, stream=stream)
        if stream:
            _in_thread(lambda: _run_quietly(call))
        elif self._is_async:
            await _arun_body(call)
        else:
            body = _in_thread(lambda: _run_body(call))
            try:
                await asyncio.wrap_future(body)
            except asyncio.CancelledError:
                call.run.cancel()
                raise
        return call.state

    @overload
    def run_batch(
        self,
        batch: Sequence[Arguments],
        *,
        backend: AnyBackend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        **kwargs: Any,
    ) -> list[ProgramState]: ...
    @overload
    def run_batch(
        self,
        batch: Sequence[Arguments],
        *,
        backend: AnyBackend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[True],
        **kwargs: Any,
    ) -> Iterator[ProgramState]: ...

    def run_batch(
        self,
        batch: Sequence[Arguments],
        *,
        backend: AnyBackend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **kwargs: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run it for each item of a batch, a dict of arguments or a tuple of them; the states in the same order.

        num_threads: how many run at once; "auto" is up to 64. What their prompts share is computed once.
        generator_style: give the states one by one as they come, still in order; leaving the iterator ends the rest.

        Where one fails, the others go on: its state has `.error`, which is raised wherever the state is read. Raises
        ProgramMisuse at once where an item does not fit the function's parameters.
        """
        if isinstance(batch, str | Mapping) or not isinstance(batch, Iterable):
            text = "run_batch takes a list of items, each a dict or a tuple of arguments"
            raise ProgramMisuse(f"{text}; not {'None' if batch is None else type(batch).__name__}.")
        prepared = [self._prepare(*_given(item), backend, stream=False, defaults=kwargs) for item in batch]
        if num_threads != "auto" and (not isinstance(num_threads, int) or num_threads < 1):
            raise ProgramMisuse(f"num_threads must be at least 1, or 'auto'; not {num_threads!r}.")
        works = [functools.partial(_run_quietly, call) for call in prepared]
        ended = run_all(works, [call.run.cancel for call in prepared], num_threads, progress_bar, self.name)
        states = (prepared[i].state for i in ended)
        return states if generator_style else list(states)

    def bind(self, **kwargs: Any) -> Program[..., R]:
        """The program with some arguments given. Raises ProgramMisuse for one that it does not have."""
        for name in kwargs:
            if name not in self._parameters:
                raise ProgramMisuse(f"{self.name} has no parameter {name!r} that could be bound.")
        return Program(self.function, {**self._bound, **kwargs})

    def trace(self, *args: Any, **kwargs: Any) -> Trace:
        """The program's dependency graph, found by running it without a model. Arguments that are not given are
        stand-ins; see `trace.Trace`."""
        backend = TraceBackend()
        missing = stand_ins(self._signature, len(args), {**self._bound, **kwargs})
        call = self._prepare(args, {**missing, **kwargs}, backend, stream=False)
        _run_quietly(call)
        return Trace(call.run, call.state.error)

    # --- inside ----------------------------------------------------------------------------------------------------

    @property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def _prepare(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        backend: AnyBackend | None,
        *,
        stream: bool,
        defaults: Mapping[str, Any] = {},
    ) -> _ProgramCall:
        """The function's call with a state of its own. Raises ProgramMisuse."""
        arguments = {name: value for name, value in kwargs.items() if self._takes(name)}
        options = {**defaults, **{name: value for name, value in kwargs.items() if name not in arguments}}
        run = Run(self.name, chosen_backend(backend), self._defaults(options), stream=stream, is_async=self._is_async)
        branch = Branch(run)
        state = ProgramState(branch)
        try:
            bound = self._signature.bind(state, *args, **{**self._bound, **arguments})
        except TypeError as error:
            raise ProgramMisuse(f"{self.name} cannot be called so: {error}.") from None
        return _ProgramCall(run, branch, state, functools.partial(self.function, *bound.args, **bound.kwargs))

    def _takes(self, name: str) -> bool:
        """Whether this keyword argument is for the function. One that has **kwargs gets all but a run's options."""
        if name in self._parameters:
            return True
        takes_any = any(each.kind is each.VAR_KEYWORD for each in self._signature.parameters.values())
        return takes_any and _ALIASES.get(name, name) not in RUN_OPTIONS

    def _defaults(self, options: Mapping[str, Any]) -> GenOptions:
        given: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS}
        for name, value in options.items():
            name = _ALIASES.get(name, name)
            if name not in RUN_OPTIONS:
                near = probably_meant(name, [*self._parameters, *sorted(RUN_OPTIONS)])
                hint = f" Did you mean {near!r}?" if near else ""
                text = f"{self.name} has no parameter {name!r}, nor is it an option of a run."
                raise ProgramMisuse(text + hint)
            given[name] = value
        return gen_options(**given)


def _given(item: Arguments) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """An item of a batch as positional and keyword arguments."""
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, str) or not isinstance(item, Sequence):
        raise ProgramMisuse(f"An item of a batch is a dict or a tuple of arguments; not {type(item).__name__}.")
    return item, {}


def _run_body(call: _ProgramCall) -> None:
    """The function, then the end of all that it started. Its errors leave with what is open aborted."""
    token = inside.set((*inside.get(), call.run))
    try:
        result = call.function()
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        call.state.ret_value = result
        call.run.close()
    except BaseException as error:
        call.branch.end(error)
        call.run.abandon()
        raise
    finally:
        inside.reset(token)
    call.run.finish()


async def _arun_body(call: _ProgramCall) -> None:
    token = inside.set((*inside.get(), call.run))
    try:
        call.state.ret_value = await call.function()
        await call.run.aclose()
    except BaseException as error:
        call.branch.end(error)
        call.run.abandon()
        raise
    finally:
        inside.reset(token)
    call.run.finish()


def _run_quietly(call: _ProgramCall) -> None:
    """The same where nobody is there to catch an error: it stays in the state."""
    try:
        _run_body(call)
    except Exception as error:
        call.branch.end(error)


async def _awaited(result: Any) -> Any:
    return await result


def _in_thread(work: Callable[[], None]) -> concurrent.futures.Future[None]:
    """Start work in a thread of its own, with this thread's context variables."""
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    context = contextvars.copy_context()

    def body() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(context.run(work))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=body, name="sapwood-program", daemon=True).start()
    return future
