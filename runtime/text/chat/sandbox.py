"""Runs Jinja chat templates: in a sandbox, on plain data, within limits of time and size.

A template comes with the model and is not trusted: whatever it does ends in its text or in a `TemplateError`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_join
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ...errors import TemplateError, TemplateRefusal
from .own_text import OwnText, concat, format_own, marked_safe, tracked, written

MAX_SECONDS = 2.0
MAX_CHARS = 1 << 25
MAX_BITS = 4096
_GROWING = frozenset({"append", "pop"})  # of a list that a template made itself; others belong to others
_DECODING = frozenset({"encode", "striptags", "unescape"})  # they make text of what does not look like it


class TemplateProgram:
    """One compiled template. Not for use by several threads at once.

    words: the string constants that the template itself contains. variables: the names that it is to be given.
    """

    def __init__(self, source: str) -> None:
        """Raises TemplateError for a template that does not compile."""
        self._environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_LimitChecks, _Constants, _GenerationTag, loopcontrols]
        )
        self._environment.filters.pop("striptags")
        self._environment.filters |= {"tojson": _tojson, "join": _join, "safe": marked_safe}
        self._environment.globals.pop("lipsum")
        self._environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            tree = self._environment.parse(source)
            self.variables = frozenset(find_undeclared_variables(tree))
            self._template = self._environment.from_string(tree)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the chat template does not compile: {error}") from error
        self.words = frozenset(_Constants.of(self._environment).texts)

    def render(self, variables: Mapping[str, Any], deadline: float | None = None) -> OwnText:
        """The template's text for these variables, which are plain JSON-like data; it knows what is the template's own.

        deadline: on time.monotonic's clock, where it comes before MAX_SECONDS are over.
        Raises TemplateError for whatever goes wrong, and for a template that passes MAX_SECONDS or MAX_CHARS.
        """
        self._environment.given = variables
        self._environment.given_lists = None
        latest = time.monotonic() + MAX_SECONDS
        self._environment.deadline = latest if deadline is None else min(latest, deadline)
        chunks = []
        length = 0
        try:
            for chunk in self._template.generate(dict(variables)):
                chunks.append(chunk)
                length += len(chunk)
                _check_length(length)
        except _Refusal as error:
            raise TemplateRefusal(f"the chat template refuses the conversation: {error}") from error
        except Exception as error:  # a template can make any operation on its data fail
            raise TemplateError(f"the chat template failed: {str(error) or type(error).__name__}") from error
        return concat(chunks)


class _Refusal(jinja2.TemplateError):
    """What `raise_exception` raises inside a template."""


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with limits: loops and macros watch the clock, and operators that can blow up watch the size."""

    intercepted_binops = frozenset({"+", "*", "**"})
    concat = staticmethod(concat)  # pyright: ignore[reportAssignmentType]
    deadline = 0.0
    given: Any = None
    given_lists: set[int] | None = None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, list) and attr in _GROWING:
            if self.given_lists is None:
                self.given_lists = set(_lists_in(self.given))
            return id(obj) not in self.given_lists
        return attr not in _DECODING and attr != "own_mask" and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        text = getattr(value, "__self__", None)
        if wrapped is None or not isinstance(text, OwnText):
            return wrapped

        def format_with(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
            bound = super(_Environment, self).wrap_str_format(getattr(text, value.__name__))
            assert bound is not None
            return bound(*args, **kwargs)

        return lambda *args, **kwargs: format_own(
            text, lambda other: format_with(other, args, kwargs), [*args, *kwargs.values()]
        )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        return _Instrumenter(self).visit(template)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _check_length(_length(left) + _length(right))
        elif operator == "**":
            _check_bits(left, right)
        elif isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > MAX_BITS:
                raise SecurityError("the template computes a number that is too large")
        else:
            _check_length(max(_length(left), _length(right)) * max(_count(left), _count(right)))
        return super().call_binop(context, operator, left, right)


class _LimitChecks(Extension):
    """The checks that `_Instrumenter` puts into a template; being methods, no template can redefine them."""

    def tick(self) -> str:
        if time.monotonic() > self.environment.deadline:  # pyright: ignore[reportAttributeAccessIssue]
            raise SecurityError(f"the template runs for more than {MAX_SECONDS:g} seconds")
        return ""

    def concat(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        _check_length(sum(map(len, texts)))
        return concat(texts)


class _Constants(Extension):
    """What a template's source says, as text of its own: attributes of this object, which no template can change.

    texts: the string constants in the order of their attributes, which are called text0, text1 and so on.
    """

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.texts: dict[str, int] = {}

    @staticmethod
    def of(environment: jinja2.Environment) -> _Constants:
        return environment.extensions[_Constants.identifier]  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]

    def node(self, text: str, lineno: int) -> nodes.Expr:
        """The expression that stands for `text` in a template."""
        name = f"text{self.texts.setdefault(text, len(self.texts))}"
        setattr(self, name, written(text))
        return self.attr(name, lineno=lineno)


class _GenerationTag(Extension):
    """The `{% generation %}` block with which training templates mark the assistant's text: its content, as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Instrumenter(NodeTransformer):
    """Puts a clock check into every loop and macro body, a size check around every `~`, `_Constants` for strings."""

    def __init__(self, environment: _Environment) -> None:
        self._limits: _LimitChecks = environment.extensions[_LimitChecks.identifier]  # pyright: ignore[reportAttributeAccessIssue]
        self._constants = _Constants.of(environment)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        return self._constants.node(node.value, node.lineno) if isinstance(node.value, str) else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return self._constants.node(node.data, node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._ticking(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._limits.call_method("concat", node.nodes, lineno=node.lineno)

    def _ticking(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._limits.call_method("tick", lineno=node.lineno), lineno=node.lineno))
        return node


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter as chat templates expect it: JSON with nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_eval_context
def _join(context: nodes.EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    """The filter of that name, with a separator that keeps in mind whose text the parts are."""
    return do_join(context, value, tracked(str(d)), attribute)  # pyright: ignore[reportReturnType]


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _lists_in(value: Any) -> Iterator[int]:
    """The identities of all lists in plain data."""
    if isinstance(value, list):
        yield id(value)
    if isinstance(value, list | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _lists_in(each)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 1


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 1


def _check_length(length: int) -> None:
    if length > MAX_CHARS:
        raise SecurityError(f"the template makes a text of more than {MAX_CHARS} characters")


def _check_bits(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise SecurityError("the template computes a number that is too large")
