from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the modules that are no tests are this folder's own


@pytest.fixture
def fake_flashinfer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for FlashInfer, which the backend imports in its place."""
    fake = importlib.import_module("fake_flashinfer")
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    return fake
