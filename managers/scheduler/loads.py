"""Requests that wait until the worker has loaded something, so that loading never holds up a step."""

from __future__ import annotations

from .request import Request


class Loads:
    """Who waits for what, by the key of what is loaded."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Request]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, key: str, request: Request) -> bool:
        """Let a request wait here until `arrived` gives it back, or it is removed. True: nobody waited for the key."""
        is_first = key not in self._waiting
        self._waiting.setdefault(key, []).append(request)
        return is_first

    def arrived(self, key: str) -> list[Request]:
        """The requests that waited for it; they do so no longer."""
        return self._waiting.pop(key, [])

    def remove(self, request: Request) -> bool:
        """Take a request out; False where it does not wait here. The key stays: its loading was ordered."""
        for waiting in self._waiting.values():
            if request in waiting:
                waiting.remove(request)
                return True
        return False
