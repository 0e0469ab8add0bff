"""The rules of design section 2 on who may import whom, read off the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sapwood

ROOT = Path(sapwood.__file__).parent
ALLOWED = {
    "lang": {"lang", "managers", "runtime", "radix", "constrained"},
    "managers": {"managers", "runtime", "radix", "constrained"},
    "runtime": {"runtime"},
    "radix": {"radix"},
    "constrained": {"constrained"},
}
WITHOUT_TORCH = ["sapwood", "sapwood.__main__", "sapwood.managers.tokenizer.process", "sapwood.managers.front.engine"]


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported_folders(path: Path) -> set[str]:
    """The top-level folders of the package that a module imports from, and anything absolute that names the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            target = (*base, *(node.module or "").split(".")) if node.module else base
            found |= {target[0]} if target else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sapwood":
            found.add("an absolute import of sapwood")
        elif isinstance(node, ast.Import):
            found |= {"an absolute import of sapwood" for alias in node.names if alias.name.split(".")[0] == "sapwood"}
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_point_one_way(folder: str) -> None:
    assert modules(folder), f"{folder} holds no modules"
    wrong = {
        str(path.relative_to(ROOT)): extra
        for path in modules(folder)
        if (extra := imported_folders(path) - ALLOWED[folder])
    }
    assert wrong == {}


def test_no_package_file_imports_anything() -> None:
    """So that importing one room never loads another."""
    full = [
        path
        for folder in ALLOWED
        for path in modules(folder)
        if path.name == "__init__.py" and path.read_text().strip()
    ]
    assert full == []


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_only_the_worker_imports_torch(module: str) -> None:
    heavy = "('torch', 'transformers', 'triton', 'xgrammar', 'flashinfer')"
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.alone
def test_importing_the_package_is_quick() -> None:
    """Under 0.3 s beyond the interpreter's own start, the best of three."""

    def best(code: str) -> float:
        clock = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
        return min(float(subprocess.check_output([sys.executable, "-c", clock])) for _ in range(3))

    assert best("import sapwood") < 0.3
    assert best("import sapwood; sapwood.Engine") < 0.6
