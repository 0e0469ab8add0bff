"""The log of a process: one readable line per event on stderr. It must never be set up in a library user's process."""

from __future__ import annotations

import logging

_ROOT = "sapwood"


def start_logging(role: str, level: str) -> None:
    """Show events of `level` ("debug", "info", "warning", "error") and above as `12:00:01 role       text`."""
    root = logging.getLogger(_ROOT)
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"%(asctime)s {role:<9} %(message)s", "%H:%M:%S"))
        root.addHandler(handler)
        root.propagate = False
    root.setLevel(level.upper())


def logger(role: str) -> logging.Logger:
    """The logger of a process's own events (modules run with `python -m` are all named `__main__`)."""
    return logging.getLogger(f"{_ROOT}.{role}")
