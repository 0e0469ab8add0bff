"""From an Engine's keyword arguments to its options."""

from __future__ import annotations

import warnings
from typing import Any

from ...constrained.near_names import probably_meant
from ..wire.errors import ConfigError, InvalidRequest
from ..wire.options import OPTIONS, EngineConfig
from .requests.bodies import struct_from


def config_from(options: dict[str, Any]) -> EngineConfig:
    """The configuration that these keyword arguments describe; raises ConfigError naming an unknown or mistyped one.

    An option that was renamed is taken by its name before, with a DeprecationWarning.
    """
    renamed = {o.formerly: name for name, o in OPTIONS.items() if o.formerly in options and name not in options}
    for old, name in renamed.items():
        warnings.warn(f"The option {old!r} is now called {name!r}.", DeprecationWarning, stacklevel=3)
    options = {renamed.get(name, name): value for name, value in options.items()}
    if unknown := next((name for name in options if name not in OPTIONS), None):
        shown = sorted(name for name, option in OPTIONS.items() if option.group)
        near = probably_meant(unknown, shown)
        hint = f"; did you mean {near!r}?" if near else f". Allowed are: {', '.join(shown)}."
        raise ConfigError(f"Unknown option {unknown!r}{hint}")
    try:
        return struct_from(options, EngineConfig, noun="option")
    except InvalidRequest as error:
        raise ConfigError(error.sentence, error.path) from None
