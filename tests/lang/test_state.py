"""What programs mean: text, variables, roles, branches, and their ends, on a backend from a script."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

import sapwood as sgl
from sapwood import ProgramMisuse, ProgramState
from sapwood.lang.errors import UnknownVariable


def test_text_and_generations_follow_each_other(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> str:
        s += "one " + sgl.gen("a") + " two "
        s += [sgl.gen("b"), " three"]
        return "returned"

    state = program()
    assert scripted.prompts == ["one ", "one <4> two "]
    assert (state["a"], state["b"], state.ret_value) == ("<4>", "<12>", "returned")
    assert state.text() == "one <4> two <12> three"
    assert str(state) == f"ProgramState({state.text()})"
    assert "a" in state
    assert "c" not in state


def test_options_of_the_run_are_defaults_that_gen_overrides(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState, top_k: str) -> None:
        s += top_k + sgl.gen("a", temperature=0.5, stop="x") + sgl.gen("b", 7)

    program.run(top_k="the parameter, not the option", temperature=0.9, max_new_tokens=50, seed=3)
    first, second = scripted.options
    assert first.given() == {"temperature": 0.5, "stop": ("x",), "max_tokens": 50, "seed": 3}
    assert second.given() == {"temperature": 0.9, "max_tokens": 7, "seed": 3}
    program("x")
    assert scripted.options[-1].given() == {"max_tokens": 7}
    assert scripted.options[-2].max_tokens == 128


def test_messages_are_recorded_in_every_way_to_write_them(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.system("rules")
        s += s.user("by expression")
        with s.assistant():
            s += "in a block " + sgl.gen("a")
        s += sgl.user_begin() + "begun" + sgl.user_end()
        s += sgl.assistant_begin()
        s += "still open"

    state = program()
    assert state.messages() == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "by expression"},
        {"role": "assistant", "content": f"in a block {state['a']}"},
        {"role": "user", "content": "begun"},
    ]


def test_var_scope_holds_the_text_written_within(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "before "
        with s.var_scope("all"):
            s += "x" + sgl.gen() + "y"
        s["own"] = 5

    state = program()
    assert state["all"] == "x<8>y"
    assert state["own"] == 5
    with pytest.raises(ProgramMisuse, match="not generated"):
        state.meta("own")


def test_n_samples_make_a_list_and_the_first_goes_on(scripted: Any) -> None:
    answers = iter("abcd")
    scripted.answer = lambda prompt, options: next(answers)

    @sgl.function
    def program(s: ProgramState) -> None:
        s += "q:" + sgl.gen("x", n=3) + "."

    state = program()
    assert state["x"] == ["a", "b", "c"]
    assert state.text() == "q:a."
    assert state.meta("x")["finish_reason"] == ["stop"] * 3


# --- branches ------------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_branches_run_side_by_side_and_are_gathered(scripted: Any) -> None:
    scripted.seconds = 0.1

    @sgl.function
    def program(s: ProgramState) -> None:
        s += "shared" + sgl.gen("before")
        forks = s.fork(8)
        for i, f in enumerate(forks):
            f += f" {i}:" + sgl.gen("each")
        forks[0] += sgl.gen("only here")
        forks.join()
        s += "." + sgl.gen("after")

    started = time.perf_counter()
    state = program()
    assert scripted.most_open == 8
    assert time.perf_counter() - started < 0.1 * 8
    assert state["each"] == ["<12>"] * 8
    assert state["only here"] == ["<16>"]
    assert state["before"] == "<6>"
    assert state.text() == "shared<6>.<10>"
    assert [meta["finish_reason"] for meta in state.meta("each")] == ["stop"] * 8


def test_branches_are_appended_in_order(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "shared"
        forks = s.fork(2)
        forks += lambda i: f" {i}:" + sgl.gen("x")
        forks += [" first", " second"]
        forks += "!"
        forks.join("concate_and_append")
        s += sgl.gen("after")

    state = program()
    assert state.text() == "shared 0:<9> first! 1:<9> second!<33>"
    assert "x" not in state


@pytest.mark.parametrize("lead", [[], [""]])
def test_a_fork_may_be_the_first_thing(scripted: Any, lead: list[str]) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        for text in lead:
            s += text
        forks = s.fork(3)
        forks += "go" + sgl.gen("x")
        forks.join()

    assert program()["x"] == ["<2>"] * 3


def test_branches_of_branches_and_copies(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "a"
        outer = s.fork(2)
        for f in outer:
            inner = f.fork(2)
            inner += "b" + sgl.gen("x")
            inner.join()
        outer.join()
        with s.copy() as aside:
            aside += "c" + sgl.gen("y")
        s += "d"

    state = program()
    assert state["x"] == [["<2>", "<2>"], ["<2>", "<2>"]]
    assert state["y"] == ["<2>"]
    assert state.text() == "ad"


def test_a_branch_keeps_its_role(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.user("q") + sgl.assistant_begin()
        forks = s.fork(2)
        forks += sgl.gen("x") + sgl.assistant_end()
        forks.join()
        s += "no branch" + sgl.assistant_end()
        other = s.fork(1)
        other[0] += sgl.user_begin() + "open"
        with pytest.raises(ProgramMisuse, match="same role"):
            other.join("concate_and_append")

    assert program().messages()[-1] == {"role": "assistant", "content": "no branch"}


# --- misuse --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda: sgl.user(sgl.assistant("x")), "Roles cannot be nested: assistant begins within user"),
        (lambda: sgl.user_end(), "user ends, but no role is open"),
        (lambda: sgl.user_begin() + sgl.assistant_end(), "assistant ends, but user is open"),
        (lambda: None, "None cannot be added to a state"),
        (
            lambda: 5,
            "a value of type int cannot be added to a state; text, expressions and lists of them can.",
        ),
        (lambda: ["a", 2.5], "Write str(2.5) for its text"),
        (lambda: ["a", None], "None cannot be added to a state"),
        (lambda: sgl.select("x"), "select needs choices"),
        (lambda: sgl.select("x", []), "choices is empty"),
        (lambda: sgl.select("x", ["a", ""]), "choices holds an empty text"),
        (lambda: sgl.select("x", ["a", "b", "a"]), "choices holds 'a' twice"),
        (lambda: sgl.select("x", 5), "choices must be a list of texts"),  # type: ignore
        (lambda: sgl.gen("x", choices=5), "choices must be a list of texts"),  # type: ignore
        (lambda: sgl.gen("x", stop=0, dtype=int), "stop must be a text or a list of texts"),  # type: ignore
        (lambda: sgl.select("x", "abc"), "choices must be a list of texts"),
        (lambda: sgl.select("x", ["a"], choices_method="best"), "choices_method must be one of"),  # type: ignore
        (lambda: sgl.select("x", ["a"], temperature=0.7), "temperature must be 0"),
        (lambda: sgl.gen("x", choices=["a"], max_tokens=5), "which takes no max_tokens"),
        (lambda: sgl.gen("x", choices_method=sgl.total_likelihood), "choices_method needs choices"),
        (lambda: sgl.gen("x", dtype=int, regex="a"), "dtype and regex exclude each other"),
        (lambda: sgl.gen("x", dtype=list), "dtype must be one of int, float, bool, str"),  # type: ignore
        (lambda: sgl.gen("x", "y"), "write s += 'y' + gen('x')"),  # type: ignore
        (lambda: sgl.gen(5), "gen takes the name of a variable first"),  # type: ignore
        (lambda: sgl.select(["x", "y"]), "select(\"name\", ['x', 'y'])"),  # type: ignore
        (lambda: sgl.gen("x", stop=5), "stop must be a text or a list of texts, not 5"),  # type: ignore
        (lambda: sgl.gen("x", stop=["a", 5]), "stop must be a text or a list of texts"),  # type: ignore
        (lambda: sgl.gen("x", stop=5, dtype=int), "stop must be a text or a list of texts"),  # type: ignore
        (lambda: sgl.gen("x", stop_token_ids="ab"), "stop_token_ids must be a list of token ids"),  # type: ignore
        (lambda: sgl.gen("x", n=1.5), "n must be a whole number, not 1.5"),  # type: ignore
        (lambda: sgl.gen("x", temperature="hot"), "temperature must be a number, not 'hot'"),  # type: ignore
        (lambda: sgl.gen("x", json_schema="{"), "json_schema is no JSON text"),
        (lambda: sgl.gen("x", json_schema=object()), "json_schema must be a schema"),
        (lambda: sgl.separate_reasoning(sgl.gen("x"), "unheard of"), "model_type must be one of"),
        (lambda: sgl.separate_reasoning(sgl.gen(), "qwen3"), "needs a gen with a name"),
    ],
)
def test_misuse_is_refused_at_once_and_adds_nothing(scripted: Any, content: Any, sentence: str) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += "text"
        with pytest.raises(ProgramMisuse, match=re.escape(sentence)):
            s += content()
        assert s.text() == "text"

    program()
    assert scripted.prompts == []


@pytest.mark.parametrize("expr", [sgl.gen("a"), sgl.select("a", ["x"]), sgl.user("q"), "x" + sgl.gen()])
def test_an_expression_does_not_become_text_by_mistake(expr: Any) -> None:
    for write in (lambda: f"Say: {expr}", lambda: f"Say: {expr:>9}", lambda: f"Say: {expr!s}", lambda: str(expr)):
        with pytest.raises(TypeError, match=re.escape('write "Say: " + gen("a")')):
            write()
    assert repr(expr)


def test_an_unknown_argument_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match="gen has no argument 'temprature'; did you mean 'temperature'"):
        sgl.gen("x", temprature=1)  # type: ignore
    with pytest.raises(TypeError, match="'max_new_tokens'; did you mean 'max_tokens'"):
        sgl.gen_int("x", max_new_tokens=1)
    with pytest.raises(TypeError, match="select has no argument 'zzz'; it takes name, choices, temperature"):
        sgl.select("x", ["a"], zzz=1)  # type: ignore


def test_states_are_added_to_in_place_and_forked_into_whole_numbers(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        with pytest.raises(ProgramMisuse, match=re.escape("write `s += …`")):
            _ = s + "x"
        for size in ("2", None, 2.0, 0):
            with pytest.raises(ProgramMisuse, match=re.escape(f"whole number of at least 1, not {size!r}")):
                s.fork(size)  # type: ignore

    program()


def test_what_cannot_be_a_program_is_refused_at_once() -> None:
    def generator(s: ProgramState) -> Any:
        yield s

    async def async_generator(s: ProgramState) -> Any:
        yield s

    for function in (generator, async_generator):
        with pytest.raises(ProgramMisuse, match="has a `yield` in it"):
            sgl.function(function)
    with pytest.raises(ProgramMisuse, match=r"ask is a method .* methods cannot be programs"):

        class _Holder:
            @sgl.function  # type: ignore
            def ask(self, s: ProgramState) -> None:
                pass


def test_what_is_not_there_is_said_with_what_is(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.gen("known")
        s["unknown"]

    with pytest.raises(UnknownVariable, match="This state has no variable 'unknown'; it has 'known'"):
        program()
    with pytest.raises(KeyError):
        program()


def test_runs_refuse_what_they_do_not_know(scripted: Any) -> None:
    @sgl.function
    def program(s: ProgramState, question: str) -> None:
        pass

    with pytest.raises(ProgramMisuse, match=r"no parameter 'temprature', nor .* Did you mean 'temperature'"):
        program.run("x", temprature=1)
    with pytest.raises(ProgramMisuse, match="missing a required argument: 'question'"):
        program.run()
    with pytest.raises(ProgramMisuse, match="no parameter 'answer' that could be bound"):
        program.bind(answer=1)
    with pytest.raises(ProgramMisuse, match="not str"):
        program.run("x", backend="http://nowhere")  # type: ignore
    with pytest.raises(ProgramMisuse, match="takes no argument"):
        sgl.function(lambda: None)  # type: ignore
    sgl.set_default_backend(None)
    with pytest.raises(ProgramMisuse, match="no backend"):
        program("x")


def test_an_ended_state_takes_nothing_more(scripted: Any) -> None:
    kept: list[ProgramState] = []

    @sgl.function
    def program(s: ProgramState) -> None:
        forks = s.fork(2)
        kept.extend(forks)
        forks.join()
        with pytest.raises(ProgramMisuse, match="This branch has been joined"):
            kept[0] += "x"

    state = program()
    for ended in (state, kept[1]):
        with pytest.raises(ProgramMisuse, match="ended"):
            ended += "x"
