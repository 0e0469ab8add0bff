"""The name under which a model is served: decided once at the start, whatever becomes of its file."""

# ruff: noqa: ASYNC240 (a rename takes no time)

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sapwood.managers.server.server_state import ServerState


@pytest.fixture
def served_model(tmp_path: Path) -> str:
    path = tmp_path / "oak-1b.gguf"
    path.touch()
    return str(path)


@pytest.mark.parametrize(
    ("made", "model", "name"),
    [
        ("file", "oak-1b.Q8_0.gguf", "oak-1b.Q8_0"),
        ("directory", "oak-1b.v2", "oak-1b.v2"),
        ("nothing", "oaks/oak-1b", "oaks/oak-1b"),
        ("nothing", "smollm2", "smollm2"),
    ],
)
def test_a_path_is_served_by_its_last_part_and_another_name_as_it_is(
    front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, model: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if made == "file":
        Path(model).touch()
    elif made == "directory":
        Path(model).mkdir()
    assert ServerState(front, model).model_name == name


async def test_moving_the_file_does_not_change_the_name(client, served_model: str, tmp_path: Path) -> None:
    body = {"model": "oak-1b", "prompt": "a", "max_tokens": 3}
    path = Path(served_model)
    path.rename(tmp_path / "elm.gguf")
    events = await client.events("/v1/completions", body)
    assert {json.loads(event)["model"] for event in events if event != "[DONE]"} == {"oak-1b"}
    _, models = await client.get("/v1/models")
    assert [model["id"] for model in models["data"]] == ["oak-1b"]
    path.mkdir()
    status, answer = await client.post("/v1/completions", {**body, "model": served_model})
    assert (status, answer["model"]) == (200, "oak-1b")


async def test_no_chunk_looks_at_the_disk(client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: pytest.fail("the disk was looked at"))
    assert len(await client.events("/v1/completions", {"prompt": "a", "max_tokens": 3})) > 3
