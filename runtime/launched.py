"""A step that was launched: its output, now or once the device has come to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from torch import Tensor

from .step import StepOutput

NOTHING = StepOutput(np.empty(0, np.int32), np.empty(0, np.int32), [], [], [])


class Launched:
    """Until the output is known: chosen, int64 on the device, is what the step samples (0 where that fails), and
    fed_places says which of it is whose row's token. Then they are empty, and the rows know."""

    def __init__(
        self,
        finish: Callable[[], StepOutput],
        is_there: Callable[[], bool],
        chosen: Tensor | None = None,
        fed_places: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """finish: waits for the device and gives the output; called once at most. is_there: whether it would wait."""
        self.chosen = chosen
        self.fed_places = fed_places
        self._is_there = is_there
        self._finish: Callable[[], StepOutput] | None = finish
        self._output = NOTHING

    @property
    def is_known(self) -> bool:
        """Whether the output was taken from the device."""
        return self._finish is None

    @property
    def is_over(self) -> bool:
        """Whether `output` need not wait."""
        return self.is_known or self._is_there()

    def output(self) -> StepOutput:
        """Waits for the step. May be called again."""
        if self._finish is not None:
            self._output = self._finish()
            self._finish, self.chosen, self.fed_places = None, None, {}
        return self._output


def known(output: StepOutput) -> Launched:
    """A step that is over."""
    launched = Launched(lambda: output, lambda: True)
    launched.output()
    return launched
