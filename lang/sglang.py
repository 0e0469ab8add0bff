"""`Runtime`: an engine under the name and with the argument that SGLang's programs know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..managers.front.engine import Engine


class Runtime(Engine):
    """`Engine(model_path, **options)`."""

    def __init__(self, model_path: str | Path = "smollm2", **options: Any) -> None:
        super().__init__(model_path, **options)
