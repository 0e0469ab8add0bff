"""Every example runs, on the bundled model, and says what it promises."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from sapwood import RuntimeEndpoint

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[[str], str]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(endpoint: RuntimeEndpoint, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(name: str) -> str:
        load(name).main(endpoint)
        return capsys.readouterr().out

    return run


def test_every_example_is_run_by_some_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in EXAMPLES.parent.glob("tests/**/test_*.py"))
    assert {path.stem for path in EXAMPLES.glob("*.py") if path.stem not in tests} == set()


@pytest.mark.usefixtures("smollm2_path")
def test_an_example_runs_as_a_script() -> None:
    command = [sys.executable, str(EXAMPLES / "few_shot_select.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_few_shot_select(run: Run) -> None:
    assert re.findall(r"(positive|negative) +\(", run("few_shot_select")) == [
        "positive",
        "negative",
        "negative",
        "positive",
    ]


def test_multi_turn_chat(run: Run) -> None:
    said = run("multi_turn_chat")
    assert re.findall(r"^ *(\w+): \S", said, re.MULTILINE) == ["system", *["user", "assistant"] * 3]
    reused = [int(row.split()[-4]) for row in said.splitlines() if row.startswith("gen(")]
    assert reused[1] > 30
    assert reused[2] > reused[1] + 30


def test_tree_of_thought(run: Run) -> None:
    said = run("tree_of_thought")
    assert re.search(r"Step 1:.*\nStep 2:.*\nAnswer:.+", said)
    found = re.search(r"22 steps with (\d+) prompt tokens, (\d+) of them computed", said)
    assert found
    assert int(found[2]) < 0.15 * int(found[1])


def test_essay_judge(run: Run) -> None:
    said = run("essay_judge")
    assert len(re.findall(r"^Its .* is .+\.$", said, re.MULTILINE)) == 7
    assert len(re.findall(r"^gen\('judgement'\)", said, re.MULTILINE)) == 6


def test_tool_agent(run: Run) -> None:
    said = run("tool_agent")
    assert "Action: look_up" in said
    assert "the answer: 330 metres" in said


def test_json_extraction(run: Run) -> None:
    people = run("json_extraction").splitlines()
    assert len(people) == 2
    assert all(re.fullmatch(r"Person\(name='.*', age=\d+, work='(bicycles|taxi|other)'\)", each) for each in people)


def test_parallel_streams(run: Run) -> None:
    said = run("parallel_streams")
    order = "".join(re.findall(r"^(\d): '", said, re.MULTILINE))
    assert set(order) == {"0", "1", "2"}
    assert order != "".join(sorted(order)), "the branches speak by turns"
    assert len(re.findall(r"^(the sea|a forest|the night sky):", said, re.MULTILINE)) == 3


def test_long_documents(run: Run) -> None:
    found = re.search(r"(\d+) prompt tokens were sent, (\d+) of them reused", run("long_documents"))
    assert found
    assert int(found[2]) > 0.4 * int(found[1])


def test_self_consistency(run: Run) -> None:
    said = run("self_consistency").splitlines()
    assert len(said) == 9
    assert re.fullmatch(r"most say: \d+", said[-1])


def test_batch_file(endpoint: RuntimeEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("batch_file")
    module.main(endpoint)
    file = tmp_path / "questions.txt"
    file.write_text("What is the capital of France?\n\n" + "too long " * 2000)
    module.main(endpoint, file)
    said, shown = capsys.readouterr()
    assert said.count("Paris") == 2
    assert "failed: gen('answer') at line" in said
    assert "3/3" in shown
