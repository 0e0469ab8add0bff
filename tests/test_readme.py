"""What the README and the examples promise is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.usefixtures("smollm2_path")
def test_the_program_prints_what_the_readme_says(tmp_path: Path) -> None:
    code = next(block for block in python_blocks() if "Engine" in block)
    script = tmp_path / "example.py"
    script.write_text(code)
    promised = [line.removeprefix("# ") for line in code.splitlines() if line.startswith("# ")]
    assert len(promised) == 2
    assert run(str(script)).splitlines() == promised


@pytest.mark.parametrize(
    ("what", "said"), [("parse(", r"film='.*' sentiment='\w+' stars=[1-5]"), ("stream=True", r"\w+")]
)
def test_the_client_examples_run_against_the_server(server_url: str, tmp_path: Path, what: str, said: str) -> None:
    code = next(block for block in python_blocks() if what in block)
    script = tmp_path / "example.py"
    script.write_text(code.replace("http://127.0.0.1:8000", server_url))
    assert re.search(said, run(str(script)))


def test_every_path_that_the_readme_names_exists() -> None:
    named = re.findall(r"`((?:tests|runtime|managers|radix|constrained|lang|examples)/[\w/.]*)`", README)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.usefixtures("smollm2_path")
def test_the_shared_document_is_computed_once() -> None:
    said = run(str(ROOT / "examples" / "shared_document.py"))
    found = re.search(r"(\d+) prompt tokens were sent, (\d+) of them reused;\n(\d+) tokens were computed", said)
    assert found, said
    sent, reused, computed = map(int, found.groups())
    assert reused > 0.6 * sent
    assert computed <= sent - reused + 4 * 24
