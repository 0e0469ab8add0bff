"""Programs in the shape of SGLang's published ones (quick start, README, language tutorial), with its import changed.

The prompts are our own. What counts is that every name, argument and idiom they use is there and means the same.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import sapwood as sgl
from sapwood import RuntimeEndpoint, assistant, assistant_begin, assistant_end, function, gen, system, user

pytestmark = pytest.mark.usefixtures("default_endpoint")


# --- quick start ---------------------------------------------------------------------------------------------------


@sgl.function
def few_shot_qa(s, question):
    s += """Here are some questions and their answers.
Q: What is the capital of Spain?
A: Madrid
Q: What is the capital of Poland?
A: Warsaw
Q: What is the capital of Greece?
A: Athens
"""
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0)


def test_quick_start_completion() -> None:
    state = few_shot_qa.run(question="What is the capital of France?")
    assert "paris" in state["answer"].strip().lower()
    streamed = few_shot_qa.run(question="What is the capital of France?", stream=True)
    assert "".join(streamed.text_iter("answer")) == state["answer"]
    states = few_shot_qa.run_batch(
        [{"question": "What is the capital of Italy?"}, {"question": "What is the capital of Japan?"}]
    )
    assert [re.sub(r"\W", "", each["answer"]) for each in states] == ["Rome", "Tokyo"]


@sgl.function
def multi_turn_question(s, question_1, question_2):
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=24))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=24))


def test_quick_start_chat() -> None:
    arguments: dict[str, Any] = {"question_1": "What is the capital of France?", "question_2": "Name one sight there."}
    state = multi_turn_question.run(**arguments, temperature=0)
    assert [m["role"] for m in state.messages()] == ["user", "assistant"] * 2
    assert "Paris" in state["answer_1"]
    assert state.messages()[3]["content"] == state["answer_2"]
    streamed = multi_turn_question.run(**arguments, temperature=0, stream=True)
    assert "".join(streamed.text_iter()) == state.text()
    states = multi_turn_question.run_batch([arguments, {**arguments, "question_2": "And of Italy?"}])
    assert all(len(s.messages()) == 4 for s in states)


async def test_quick_start_async_stream_of_a_variable() -> None:
    state = multi_turn_question.run(question_1="What is 1 + 1?", question_2="And 2 + 2?", stream=True)
    pieces = [piece async for piece in state.text_async_iter(var_name="answer_2")]
    assert "".join(pieces) == state["answer_2"]


def test_several_samples() -> None:
    @sgl.function
    def program(s, question_1, question_2):
        s += sgl.system("You are a helpful assistant.")
        s += sgl.user(question_1)
        s += sgl.assistant(sgl.gen("answer_1", max_tokens=12, n=2))
        s += sgl.user(question_2)
        s += sgl.assistant(sgl.gen("answer_2", max_tokens=12))

    state = program.run(question_1="Name a colour.", question_2="And another one.")
    assert isinstance(state["answer_1"], list)
    assert len(state["answer_1"]) == 2
    assert isinstance(state["answer_2"], str)


# --- README --------------------------------------------------------------------------------------------------------


@sgl.function
def tool_use(s, question):
    s += "To answer this question: " + question + ". "
    s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "

    if s["tool"] == "calculator":
        s += "The expression is" + sgl.gen("expression", max_tokens=12)
    elif s["tool"] == "search engine":
        s += "The words to look for are" + sgl.gen("word", max_tokens=12)


def test_control_flow() -> None:
    state = tool_use.run(question="What is 2 * 2?")
    assert state["tool"] in ("calculator", "search engine")
    assert ("expression" in state) == (state["tool"] == "calculator")
    assert set(state.get_meta_info("tool")["scores"]) == {"calculator", "search engine"}


@sgl.function
def tip_suggestion(s):
    s += "Two tips for a good night's sleep: 1. A dark room. 2. No coffee in the evening.\n\n"

    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now, explain tip {i + 1}:\n"
        f += sgl.gen("detailed_tip", max_tokens=24, stop="\n\n")

    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary", max_tokens=16)


def test_parallelism() -> None:
    text = tip_suggestion.run().text()
    assert re.search(r"Tip 1:.*Tip 2:.*In summary.+", text, re.DOTALL)


def test_parallel_samples_through_the_group() -> None:
    @sgl.function
    def parallel_sample(s, question, n):
        s += "Question: Compute 1 + 2 + 3\nReasoning: I use a calculator.\nTool: calculator\nAnswer: 6\n"
        s += "Question: " + question + "\n"
        forks = s.fork(n)
        forks += "Reasoning:" + sgl.gen("reasoning", stop="\n", max_tokens=16) + "\n"
        forks += "Tool:" + sgl.gen("tool", choices=["calculator", "browser"]) + "\n"
        forks += "Answer:" + sgl.gen("answer", stop="\n", max_tokens=8) + "\n"
        forks.join()

    state = parallel_sample.run(question="Compute 5 + 2 + 4.", n=3, temperature=1.0)
    assert all(len(state[name]) == 3 for name in ("reasoning", "tool", "answer"))


def test_indexed_branches_and_their_synthesis() -> None:
    @sgl.function
    def sweep(s, subjects):
        s += "Notes on animals.\n"
        forks = s.fork(len(subjects))
        for i, subject in enumerate(subjects):
            forks[i] += f"About the {subject}:"
            forks[i] += sgl.gen(f"note_{subject}", max_tokens=8, stop="\n\n", temperature=0.3)
        for i, subject in enumerate(subjects):
            s += f"\n[{subject}] " + forks[i][f"note_{subject}"]
        s += "\n\nThe best of them is" + sgl.gen("best", max_tokens=8)

    text = sweep.run(subjects=["owl", "fox"]).text()
    assert re.search(r"\[owl\] .*\[fox\] .*The best of them is.", text, re.DOTALL)


def test_batching_and_streaming(capsys: pytest.CaptureFixture[str]) -> None:
    @sgl.function
    def text_qa(s, question):
        s += "Q: " + question + "\n"
        s += "A:" + sgl.gen("answer", stop="\n")

    states = text_qa.run_batch(
        [{"question": f"What is the capital of {land}?"} for land in ("Norway", "France", "Japan")],
        progress_bar=True,
    )
    assert [state.text().split("\n")[0] for state in states][1] == "Q: What is the capital of France?"
    assert "3/3" in capsys.readouterr().err
    state = text_qa.run(question="What is the capital of France?", temperature=0.1, stream=True)
    assert "".join(state.text_iter()).startswith("Q: What is the capital of France?\nA:")


# --- language tutorial ---------------------------------------------------------------------------------------------


@function
def basic_qa(s, question):
    s += system("You are a helpful assistant who can answer questions.")
    s += user(question)
    s += assistant(gen("answer", max_tokens=32))


def test_a_program_is_called_like_a_function() -> None:
    assert basic_qa("Name two countries and their capitals.")["answer"]


def test_multi_turn_dialog_without_arguments() -> None:
    @function
    def multi_turn_qa(s):
        s += system("You are a helpful assistant who can answer questions.")
        s += user("Name two fruits.")
        s += assistant(gen("first_answer", max_tokens=16))
        s += user("Name two others.")
        s += assistant(gen("second_answer", max_tokens=16))
        return s

    state = multi_turn_qa()
    assert state["first_answer"]
    assert state["second_answer"]
    assert state.ret_value is state


def test_expressions_inside_an_assistants_message() -> None:
    @function
    def tool_use(s, question):
        s += assistant(
            "To answer this question: "
            + question
            + ". I need to use a "
            + gen("tool", choices=["calculator", "search engine"])
            + ". "
        )
        if s["tool"] == "calculator":
            s += assistant("The expression is: " + gen("found", max_tokens=8))
        elif s["tool"] == "search engine":
            s += assistant("The words to look for are: " + gen("found", max_tokens=8))

    state = tool_use("What is 2 * 2?")
    assert state["tool"] in ("calculator", "search engine")
    assert "found" in state


def test_branches_with_roles() -> None:
    @function
    def tips(s):
        s += assistant("Two tips for staying healthy: 1. Eat well. 2. Move.\n\n")
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += assistant(f"Now, expand tip {i + 1}:\n" + gen("detailed_tip", max_tokens=16, stop="\n\n"))
        s += assistant("Tip 1:" + forks[0]["detailed_tip"] + "\n")
        s += assistant("Tip 2:" + forks[1]["detailed_tip"] + "\n")
        s += assistant("To sum up:\n" + gen("summary", max_tokens=16))

    assert tips()["summary"]


def test_complex_prompts() -> None:
    @function
    def chat_example(s):
        s += system("You are a helpful assistant.")
        # Same as: s += s.system("You are a helpful assistant.")

        with s.user():
            s += "Question: What is the capital of France?"

        s += assistant_begin()
        s += "Answer: " + gen("answer", max_tokens=24, stop="\n", temperature=0)
        s += assistant_end()

    state = chat_example()
    assert state["answer"]
    assert state.messages()[-1]["content"] == "Answer: " + state["answer"]


def test_choices_methods() -> None:
    @function
    def example(s, method):
        s += user("What is the capital of France?")
        s += assistant(gen("answer", choices=["London", "Paris", "Berlin"], choices_method=method))

    methods = (
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
        sgl.total_likelihood,
    )
    answers = [example(method)["answer"] for method in methods]
    assert answers == ["Paris"] * 4


# --- what needs grammars -------------------------------------------------------------------------------------------

ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
CARD = (
    r"""\{\n"""
    r"""    "name": "[\w\d\s]{1,16}",\n"""
    r"""    "kind": "(owl|fox|bear)",\n"""
    r"""    "age": [0-9]{1,2}\n"""
    r"""\}"""
)


def test_regular_expressions() -> None:
    @sgl.function
    def regular_expression_gen(s):
        s += "Q: What is the address of the local machine?\n"
        s += "A: " + sgl.gen("answer", temperature=0, regex=ADDRESS)

    @function
    def card(s, name):
        s += user(f"{name} is an animal in a tale. Fill in this card.")
        s += assistant(gen("json_output", max_tokens=64, regex=CARD))

    assert re.fullmatch(ADDRESS, regular_expression_gen.run()["answer"])
    assert re.fullmatch(CARD, card("Reynard")["json_output"])


@pytest.mark.parametrize(("dtype", "pattern"), [(int, r"[+-]?\d+"), (float, r"[+-]?\d+(\.\d+)?"), (bool, "True|False")])
def test_simple_types(dtype: Any, pattern: str) -> None:
    @sgl.function
    def program(s):
        s += "Two and two makes " + sgl.gen("x", dtype=dtype, max_tokens=8, temperature=0)
        s += ", in words " + sgl.gen_string("y", max_tokens=8) + " and " + sgl.gen_int("z", max_tokens=6)

    state = program.run()
    assert re.fullmatch(pattern, state["x"])
    assert re.fullmatch(r"[+-]?\d+", state["z"])
    assert state["y"].startswith('"')


def test_the_runtime_by_its_other_name(default_endpoint: RuntimeEndpoint) -> None:
    """`Runtime(model_path=…)` is an Engine; starting one is the engine's own test."""
    assert issubclass(sgl.Runtime, sgl.Engine)
    assert sgl.flush_cache() >= 0
