"""The dependency graph of a program: run without a model, every value a stand-in whose way can be followed.

A program that looks at a value (to branch, to parse it) is followed on the way that the stand-in takes: `select` gives
the first choice, and a number is 0. Where that fails, the graph ends, and says why.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends.base import Backend, Completed, Emit, Judged, Sample, TokenCounts
from ..history import History
from ..ir import Gen, GenOptions, Role, Select
from ..running.output import Output
from ..running.run import Event, Run
from ..words.choices import Scored, ScoredToken
from ..words.python_types import PATTERNS
from .picture import draw

_SHOWN_CHARACTERS = 48
_VALUES = {PATTERNS[int][0]: "0", PATTERNS[float][0]: "0.0", PATTERNS[bool][0]: "True", PATTERNS[str][0]: '""'}


@dataclass(frozen=True)
class TraceNode:
    """kind: "text", "gen", "select" or "join". line: of the program, 0 where there is none to name."""

    number: int
    kind: str
    label: str
    branch: str
    line: int = 0


@dataclass(frozen=True)
class Edge:
    """`target` needs `source`: as the prompt before it ("prefix"), or as a value used in it ("value")."""

    source: int
    target: int
    kind: str


class Trace:
    """The graph: `nodes` in the order in which the program made them, and `edges`. stopped: what ended the trace
    before the program's end, None where it was followed to its end."""

    def __init__(self, run: Run, error: BaseException | None) -> None:
        self.program = run.program
        self.stopped = None if error is None else f"{type(error).__name__}: {error}"
        graph = _GraphBuilder()
        for event in run.events:
            graph.take(event)
        self.nodes = graph.nodes
        self.edges = graph.edges

    def text(self) -> str:
        """One line per node: number, branch, what it is, and the numbers of what it needs ("=" marks a value)."""
        width = max([len(node.branch) for node in self.nodes], default=0)
        lines = [f"trace of {self.program}"]
        for node in self.nodes:
            needs = [f"{'=' if e.kind == 'value' else ''}{e.source}" for e in self.edges if e.target == node.number]
            line = f"{node.number:>4}  {node.branch:<{width}}  {node.label}"
            lines.append(line + (f"  <- {', '.join(needs)}" if needs else ""))
        return "\n".join(lines + ([f"stopped by {self.stopped}"] if self.stopped else []))

    def svg(self) -> str:
        """The graph as a picture: boxes from top to bottom, solid lines for prefixes, dashed ones for values."""
        boxes = {node.number: (node.label, node.kind != "text") for node in self.nodes}
        return draw(boxes, [(edge.source, edge.target, edge.kind == "value") for edge in self.edges])

    def __str__(self) -> str:
        return self.text()

    def _repr_svg_(self) -> str:
        """For notebooks."""
        return self.svg()


class _GraphBuilder:
    """Built event by event."""

    def __init__(self) -> None:
        self.nodes: list[TraceNode] = []
        self.edges: list[Edge] = []
        self._tips: dict[str, int | None] = {}  # by branch, its last node
        self._texts: dict[int, str] = {}  # of text nodes
        self._shared: set[int | None] = set()  # nodes where branches begin, which must not grow
        self._values: dict[str, int] = {}  # stand-ins, by the node that gave them

    def take(self, event: Event) -> None:
        match event.kind:
            case "text":
                self._text(event.branch, event.text)
            case "begin":
                self._text(event.branch, f"[{event.text}] ")
            case "end":
                self._text(event.branch, f" [/{event.text}]")
            case "step" if event.output is not None:
                self._step(event.output)
            case "fork":
                tip = self._tips.get(event.branch)
                self._tips.update(dict.fromkeys(event.branches, tip))
                self._shared.add(tip)
            case _:
                self._join(event)

    def _text(self, branch: str, text: str) -> None:
        tip = self._tips.get(branch)
        if tip is not None and tip in self._texts and tip not in self._shared:
            self._texts[tip] += text
            self.nodes[tip - 1] = TraceNode(tip, "text", _short(self._texts[tip]), branch)
            number = tip
        else:
            number = self._add("text", _short(text), branch, tip)
            self._texts[number] = text
        for value, source in self._values.items():
            edge = Edge(source, number, "value")
            if value in text and edge not in self.edges:
                self.edges.append(edge)

    def _step(self, output: Output) -> None:
        kind = output.text.partition("(")[0]
        number = self._add(kind, output.text, output.branch, self._tips.get(output.branch), output.location.line)
        output.wait()
        if output.error is None and kind == "gen":
            value = output.outcome().value
            for each in value if isinstance(value, list) else [value]:
                if each.startswith("«"):
                    self._values[each] = number

    def _join(self, event: Event) -> None:
        number = self._add("join", f"join {event.text}", event.branch, self._tips.get(event.branch))
        kind = "value" if event.text == "gather_variable" else "prefix"
        for tip in dict.fromkeys(self._tips.get(branch) for branch in event.branches):
            if tip is not None and Edge(tip, number, "prefix") not in self.edges:
                self.edges.append(Edge(tip, number, kind))

    def _add(self, kind: str, label: str, branch: str, before: int | None, line: int = 0) -> int:
        number = len(self.nodes) + 1
        self.nodes.append(TraceNode(number, kind, label, branch, line))
        if before is not None:
            self.edges.append(Edge(before, number, "prefix"))
        self._tips[branch] = number
        return number


class TraceBackend(Backend):
    """No model: every generation gives a stand-in, every selection its first choice."""

    name = "a trace"

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def check_gen(self, gen: Gen, options: GenOptions, role: Role | None, begun: bool) -> None:
        pass

    def check_select(self, select: Select, role: Role | None) -> None:
        pass

    async def generate(self, history: History, options: GenOptions, emit: Emit | None) -> Completed:
        texts = [_VALUES.get(options.regex or "", f"«{next(self._numbers)}»") for _ in range(options.n or 1)]
        return Completed([Sample(text, (text,), "stop") for text in texts], TokenCounts())

    async def judge(self, history: History, choices: Sequence[str], *, unconditional: bool) -> Judged:
        return Judged([Scored((ScoredToken(i, choice, 0.0),), (0.0,)) for i, choice in enumerate(choices)])


def stand_ins(signature: inspect.Signature, positional: int, given: Mapping[str, Any]) -> dict[str, str]:
    """Values for the parameters behind the state that have none: their names, in quotes of their own."""
    parameters = list(signature.parameters.values())[1 + positional :]
    return {
        each.name: f"«{each.name}»"
        for each in parameters
        if each.default is each.empty
        and each.name not in given
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }


def _short(text: str) -> str:
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS // 2]} … {text[-16:]}"
    return json.dumps(shown, ensure_ascii=False)
