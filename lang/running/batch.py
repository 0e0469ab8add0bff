"""Many programs side by side, in so many threads; their ends in the order of the batch."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from tqdm import tqdm

MOST_THREADS = 64


def run_all(
    works: Sequence[Callable[[], None]],
    cancels: Sequence[Callable[[], None]],
    num_threads: int | Literal["auto"],
    progress_bar: bool,
    title: str,
) -> Iterator[int]:
    """Start all works, and give the number of each once it and all before it have ended.

    works: must not raise. cancels: ends the work of the same number. Where the iterator is left early, or an
    interrupt comes, the works that run are cancelled and the others are not begun.
    """
    threads = min(len(works), MOST_THREADS if num_threads == "auto" else num_threads)
    ended = [threading.Event() for _ in works]
    numbers = itertools.count()
    bar = tqdm(total=len(works), desc=title, disable=not progress_bar)
    stopped = threading.Event()

    def work_on() -> None:
        while not stopped.is_set() and (i := next(numbers)) < len(works):
            works[i]()
            bar.update()
            ended[i].set()

    for _ in range(threads):
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work_on,), name="sapwood-batch", daemon=True).start()
    return _ends(ended, cancels, stopped, bar)


def _ends(
    ended: list[threading.Event], cancels: Sequence[Callable[[], None]], stopped: threading.Event, bar: tqdm
) -> Iterator[int]:
    try:
        for i, event in enumerate(ended):
            event.wait()
            yield i
    finally:
        stopped.set()
        for event, cancel in zip(ended, cancels):
            if not event.is_set():
                cancel()
        bar.close()
