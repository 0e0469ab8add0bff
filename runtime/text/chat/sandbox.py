"""Runs Jinja chat templates: in a sandbox, on plain data, within limits of time and size.

A template comes with the model and is not trusted: whatever it does ends in its text or in a `TemplateError`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
import markupsafe
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ...errors import TemplateError

MAX_SECONDS = 2.0
MAX_CHARS = 1 << 25
MAX_BITS = 4096
_DECODING_FILTERS = ("striptags", "urlize", "xmlattr")  # they could make a control token of harmless-looking text
_ESCAPING_FILTERS = ("escape", "e", "forceescape")


class TemplateProgram:
    """One compiled template. Not for use by several threads at once.

    words: the names and string constants that the template itself contains.
    """

    def __init__(self, source: str, tojson: Callable[..., str]) -> None:
        """`tojson` is the filter of that name where the template uses it on constants.

        Raises TemplateError for a template that does not compile.
        """
        self._environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Limits, _Generation, loopcontrols]
        )
        for name in _DECODING_FILTERS:
            del self._environment.filters[name]
        self._environment.filters |= {"tojson": tojson, "safe": str, **dict.fromkeys(_ESCAPING_FILTERS, _escaped)}
        self._environment.globals.pop("lipsum")
        self._environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = self._environment.from_string(source)
            self.words = _words(self._environment.parse(source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the chat template does not compile: {error}") from error

    def render(self, variables: Mapping[str, Any], tojson: Callable[..., str]) -> str:
        """The template's text for these variables, which are plain JSON-like data; `tojson` is its filter of that name.

        Raises TemplateError for whatever goes wrong, and for a template that passes MAX_SECONDS or MAX_CHARS.
        """
        self._environment.filters["tojson"] = tojson
        self._environment.deadline = time.monotonic() + MAX_SECONDS
        chunks = []
        length = 0
        try:
            for chunk in self._template.generate(dict(variables)):
                chunks.append(chunk)
                length += len(chunk)
                _check_length(length)
        except _Refusal as error:
            raise TemplateError(f"the chat template refuses the conversation: {error}") from error
        except Exception as error:  # a template can make any operation on its data fail
            raise TemplateError(f"the chat template failed: {str(error) or type(error).__name__}") from error
        return "".join(chunks)


class _Refusal(jinja2.TemplateError):
    """What `raise_exception` raises inside a template."""


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with limits: loops and macros watch the clock, and operators that can blow up watch the size."""

    intercepted_binops = frozenset({"+", "*", "**"})
    deadline = 0.0

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr != "encode" and super().is_safe_attribute(obj, attr, value)  # bytes decode to whatever one likes

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        return _LimitInserter(self).visit(template)

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


class _Limits(Extension):
    """The checks that `_LimitInserter` puts into a template; being methods, no template can redefine them."""

    def tick(self) -> str:
        if time.monotonic() > self.environment.deadline:  # pyright: ignore[reportAttributeAccessIssue]
            raise SecurityError(f"the template runs for more than {MAX_SECONDS:g} seconds")
        return ""

    def concat(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        _check_length(sum(map(len, texts)))
        return "".join(texts)


class _Generation(Extension):
    """The `{% generation %}` block with which training templates mark the assistant's text: its content, as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _LimitInserter(NodeTransformer):
    """Puts a clock check into every loop and macro body, and a size check around every `~`."""

    def __init__(self, environment: _Environment) -> None:
        self._limits: _Limits = environment.extensions[_Limits.identifier]  # pyright: ignore[reportAttributeAccessIssue]

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


def _escaped(value: Any) -> str:
    """HTML-escaped, as plain text: Markup objects have methods that turn entities into what they stand for."""
    return str(markupsafe.escape(value))


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _words(template: nodes.Template) -> frozenset[str]:
    words = {node.attr for node in template.find_all(nodes.Getattr)}
    words |= {node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(words)


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
