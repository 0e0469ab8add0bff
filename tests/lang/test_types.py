"""The public face is typed. What is wrong here on purpose is marked, and a mark that marks nothing is an error.

The type checker runs over this file and over the examples with everything else.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

import pytest

from sapwood import Program, ProgramMisuse, ProgramState, assistant, function, gen, select, user


@function
def typed(s: ProgramState, question: str, width: int = 2) -> float:
    s += user(question) + assistant("So " + gen("answer", max_tokens=5) + "." + select("c", ["a", "b"]))
    return 0.5 * width


@function
async def typed_async(s: ProgramState, question: str) -> None:
    s += question
    await s.aget("x")


def test_a_program_keeps_its_parameters(scripted: Any) -> None:
    program: Program[[str, int], float] = typed
    assert_type(program("q", 2), ProgramState)
    assert_type(typed.run("q", temperature=0.5), ProgramState)
    assert_type(typed.run_batch([("q",)]), list[ProgramState])
    with pytest.raises(ProgramMisuse):
        typed("q", widht=2)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ProgramMisuse):
        typed()  # pyright: ignore[reportCallIssue]
    with pytest.raises(ProgramMisuse):
        typed_async(question="q", backend=5)  # pyright: ignore[reportCallIssue]


def test_a_wrong_keyword_is_found(scripted: Any) -> None:
    with pytest.raises(TypeError):
        gen("x", max_token=5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError):
        gen("x", temperatur=0.5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError):
        select("x", choice=["a"])  # pyright: ignore[reportCallIssue]


def test_a_value_of_the_wrong_type_is_found(scripted: Any) -> None:
    with pytest.raises(ProgramMisuse):
        select("x", choices=["a"], choices_method="the best")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ProgramMisuse):
        gen("x", dtype=list)  # pyright: ignore[reportArgumentType]

    @function
    def program(s: ProgramState) -> None:
        s += 5  # pyright: ignore[reportOperatorIssue]

    with pytest.raises(ProgramMisuse):
        program()
