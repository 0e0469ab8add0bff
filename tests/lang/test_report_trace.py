"""What a program tells of itself: the report of a run, and the graph of its dependencies."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

import sapwood as sgl
from sapwood import ProgramError, ProgramState


@sgl.function
def solve(s: ProgramState, question: str, width: int = 2) -> None:
    s += sgl.user(question)
    s += sgl.assistant_begin()
    forks = s.fork(width)
    forks += sgl.gen("idea") + " so " + sgl.select("good", ["yes", "no"])
    forks.join()
    s += "Best of " + forks[0]["idea"] + " and " + forks[1]["idea"] + ":"
    s += sgl.gen("answer", dtype=int) + sgl.assistant_end()
    if int(s["answer"]) == 0:
        s += " nothing"


def test_the_report_counts_every_step(scripted: Any) -> None:
    scripted.answer = lambda prompt, options: "0" if options.regex else "an idea"
    report = solve("q").report()
    assert [step.step for step in report.steps] == ["gen('idea')", "select('good')"] * 2 + ["gen('answer')"] or [
        step.step for step in report.steps
    ] == ["gen('idea')", "select('good')", "gen('idea')", "select('good')", "gen('answer')"]
    assert {step.branch for step in report.steps} == {"main", "main.0", "main.1"}
    assert report.computed_tokens == report.prompt_tokens - report.cached_tokens > 0
    assert report.prompt_tokens == sum(step.prompt_tokens for step in report.steps)
    assert report.completion_tokens == 2 * len("an idea") + 1
    assert 0 < report.seconds < 10
    shown = str(report).splitlines()
    assert shown[0].split() == ["step", "branch", "line", "prompt", "reused", "computed", "generated", "seconds"]
    assert shown[-1].startswith("solve, in all")
    assert len(shown) == len(report.steps) + 2
    assert json.loads(json.dumps(report.to_dict()))["steps"][0]["branch"] == "main.0"


def test_a_failed_step_is_in_the_report(scripted: Any) -> None:
    def answer(prompt: str, options: Any) -> str:
        raise ValueError("no")

    scripted.answer = answer

    @sgl.function
    def program(s: ProgramState) -> None:
        s += "x" + sgl.gen("x")
        with pytest.raises(ProgramError):
            s["x"]

    (step,) = program().report().steps
    assert step.error is not None
    assert "ValueError: no" in step.error
    assert "failed" in str(program().report())


def test_the_trace_follows_prefixes_and_values() -> None:
    trace = sgl.trace(solve)
    assert trace.stopped is None
    labels = {node.number: node.label for node in trace.nodes}
    assert labels[1] == '"[user] «question» [/user][assistant] "'
    kinds = [node.kind for node in trace.nodes]
    assert (kinds.count("gen"), kinds.count("select"), kinds.count("join")) == (3, 2, 1)
    ideas = [node.number for node in trace.nodes if node.label == "gen('idea')"]
    best = next(node.number for node in trace.nodes if "Best of" in node.label)
    assert {edge.source for edge in trace.edges if (edge.target, edge.kind) == (best, "value")} == set(ideas)
    first = [edge for edge in trace.edges if edge.target == ideas[0]]
    assert [(edge.source, edge.kind) for edge in first] == [(1, "prefix")]
    assert all(edge.source < edge.target for edge in trace.edges)
    assert all(node.line > 0 for node in trace.nodes if node.kind in ("gen", "select"))
    assert '" nothing"' in labels[len(labels)] or "nothing" in labels[len(labels)], "int() of a stand-in number is 0"


def test_the_trace_is_shown_as_text_and_as_a_picture() -> None:
    trace = solve.trace("What is <this>?")
    text = str(trace).splitlines()
    assert text[0] == "trace of solve"
    assert len(text) == len(trace.nodes) + 1
    assert "What is <this>?" in text[1]
    picture = ElementTree.fromstring(trace.svg())
    boxes = picture.findall("{http://www.w3.org/2000/svg}rect")
    lines = picture.findall("{http://www.w3.org/2000/svg}line")
    assert (len(boxes), len(lines)) == (len(trace.nodes), len(trace.edges))
    tops = {each.text: float(each.attrib["y"]) for each in picture.findall("{http://www.w3.org/2000/svg}text")}
    assert tops["gen('answer')"] > tops["gen('idea')"]


def test_a_trace_says_where_it_stopped() -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "x" + sgl.gen("x")
        json.loads(s["x"])

    trace = program.trace()
    assert [node.kind for node in trace.nodes] == ["text", "gen"]
    assert trace.stopped is not None
    assert "JSONDecodeError" in str(trace).splitlines()[-1]
