"""The command line: `sapwood serve | chat | generate | grammar | pull | bench`, also as `python -m sapwood`."""

from __future__ import annotations

import sys
import time


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 failed, 2 wrong options."""
    began = time.perf_counter()
    from .managers.cli.parser import parse

    parsed = parse(arguments)
    from .managers.cli.commands import run_command

    return run_command(parsed, began)


if __name__ == "__main__":
    sys.exit(main())
