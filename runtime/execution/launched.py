"""A step that was launched: its result, now or once the device has come to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from ..step import StepResult


class Launched:
    """Until the result is known: chosen, int64 on the device, is what the step samples (0 where that fails), and
    fed_places says which of it is whose row's token. Then they are empty, and the rows know."""

    def __init__(
        self,
        finish: Callable[[], StepResult],
        is_there: Callable[[], bool],
        chosen: Tensor | None = None,
        fed_places: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """finish: waits for the device and gives the result; called once at most. is_there: whether it would wait."""
        self.chosen = chosen
        self.fed_places = fed_places
        self._is_there = is_there
        self._finish = finish
        self._result: StepResult | None = None

    @property
    def is_known(self) -> bool:
        """Whether the result was taken from the device."""
        return self._result is not None

    @property
    def is_over(self) -> bool:
        """Whether `result` need not wait."""
        return self.is_known or self._is_there()

    def result(self) -> StepResult:
        """Waits for the step. May be called again."""
        if self._result is None:
            self._result = self._finish()
            self.chosen, self.fed_places = None, {}
        return self._result


def known(result: StepResult) -> Launched:
    """A step that is over."""
    launched = Launched(lambda: result, lambda: True)
    launched.result()
    return launched
