"""Agents of the command line, unmodified, in a loop of five calls and an answer: Codex (Responses), opencode and Qwen
Code (chat completions). They come from npm and run on demand (`pytest -m node`, see `docs/clients.md`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..scripted_proxy import Call, ScriptedProxy, proxied

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

MODEL = "agent-model"
FILES = ["one.txt", "two.txt", "three.txt", "four.txt", "five.txt"]
COMMANDS = [f"cat {name} | tee -a seen.txt" for name in FILES]
TASK = "Read the five files one after the other."
AGENT_SECONDS = 300


def program(name: str) -> str:
    """The agent's program, in `SAPWOOD_NODE_MODULES` or on the path."""
    folder = os.environ.get("SAPWOOD_NODE_MODULES")
    found = shutil.which(name, path=f"{folder}/.bin" if folder else None)
    if found is None:
        pytest.skip(f"{name} is not installed; docs/clients.md says how")
    return found


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(f"This is file {name}, and its content is a line of plain words.\n" * 3)
    return folder


def run(command: list[str], work: Path, **environment: str) -> str:
    """What it prints; it has a home of its own, and nothing else of this machine's settings."""
    home = work.parent / "home"
    (home / ".config").mkdir(parents=True, exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(work.parent), **environment}
    done = subprocess.run(
        command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=AGENT_SECONDS
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[:1000] + done.stderr[-1000:]
    return done.stdout


def check(proxy: ScriptedProxy, work: Path, said: str, path: str) -> None:
    expected = "".join((work / name).read_text() for name in FILES)
    assert (work / "seen.txt").read_text() == expected, proxy.trouble()
    assert proxy.final in said
    proxy.check_loop(len(FILES) + 1)
    proxy.check_reuse()
    assert {turn.path for turn in proxy.turns} == {path}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def test_codex(agent_url: str, work: Path) -> None:
    codex = program("codex")
    with proxied(agent_url, [Call(("exec_command",), {"cmd": each}) for each in COMMANDS]) as proxy:
        config = work.parent / "home" / ".codex" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(
            f'model = "{MODEL}"\nmodel_provider = "sapwood"\n'
            f'[model_providers.sapwood]\nname = "Sapwood"\nbase_url = "{proxy.url}/v1"\n'
        )
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        said = run([codex, "exec", *options, TASK], work)
        check(proxy, work, said, "/v1/responses")


def test_opencode(agent_url: str, work: Path) -> None:
    opencode = program("opencode")
    script = [Call(("bash",), {"command": each, "description": "Reads a file"}) for each in COMMANDS]
    with proxied(agent_url, script) as proxy:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Sapwood",
            "options": {"baseURL": f"{proxy.url}/v1"},
            "models": {MODEL: {"name": MODEL}},
        }
        write_json(work / "opencode.json", {"provider": {"sapwood": provider}})
        check(proxy, work, run([opencode, "run", "-m", f"sapwood/{MODEL}", TASK], work), "/v1/chat/completions")


def test_qwen_code(agent_url: str, work: Path) -> None:
    qwen = program("qwen")
    script = [Call(("run_shell_command",), {"command": each, "is_background": False}) for each in COMMANDS]
    with proxied(agent_url, script) as proxy:
        address = {"OPENAI_BASE_URL": f"{proxy.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}
        said = run([qwen, "--yolo", "--auth-type", "openai", "-p", TASK], work, **address)
        check(proxy, work, said, "/v1/chat/completions")
