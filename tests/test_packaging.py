"""What a user gets: one package, one command, from a wheel, whatever the working directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources (a build leaves folders behind)."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sapwood"}
    assert "sapwood/py.typed" in names
    assert ("sapwood/runtime/kernels/libsapwood_kernels.so" in names) == bool(shutil.which("c++"))
    assert not [name for name in names if "/tests/" in name or "/examples/" in name]
    modules = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if _is_packaged(path.relative_to(ROOT))}
    assert modules <= {name.removeprefix("sapwood/") for name in names}, "a package is missing in pyproject.toml"


def _is_packaged(path: Path) -> bool:
    rooms = ("constrained", "lang", "managers", "radix", "runtime")
    return path.parts[0] in rooms or (path.name in ("__init__.py", "__main__.py") and len(path.parts) == 1)


def test_an_installed_wheel_works_from_any_directory(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    assert {path.name for path in site.iterdir()} - {"bin"} == {
        "sapwood",
        wheel.name.partition("-py3")[0] + ".dist-info",
    }
    (tmp_path / "radix.py").write_text("raise SystemExit('a file of the working directory was imported')")
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, str(site / "bin" / "sapwood"), "serve", "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--kv-tokens" in done.stdout
