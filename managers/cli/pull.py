"""`sapwood pull`: fetch a model into the cache."""

from __future__ import annotations

import argparse

from ...runtime.weights import hub


def pull(arguments: argparse.Namespace) -> int:
    """Fetch the model, showing progress on stderr, and print its path. Raises ModelError."""
    print(hub.resolve(arguments.model, progress=True))
    return 0
