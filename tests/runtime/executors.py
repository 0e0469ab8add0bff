"""Executors on the CPU, by the keyword arguments of their options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sapwood.runtime.execution.executor import Executor
from sapwood.runtime.execution.loading import load_executor
from sapwood.runtime.execution.ranks import ALONE, Ranks
from sapwood.runtime.options import ExecutorOptions


def executor_of(
    path: Path,
    *,
    ranks: Ranks = ALONE,
    progress: Callable[[str], None] = lambda _: None,
    vocab_size: int | None = None,
    **options: Any,
) -> Executor:
    """The model at `path` as these options want it."""
    given: dict[str, Any] = {"device": "cpu"} | options
    return load_executor(path, ExecutorOptions(**given), vocab_size=vocab_size, ranks=ranks, progress=progress)
