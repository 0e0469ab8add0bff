"""The real worker, but for constraints whose grammar names a fault: they raise there, as an engine in Rust panics."""

import sys
from typing import Any

import numpy as np

from sapwood.constrained.matching.completion import ConstrainedCompletion
from sapwood.constrained.matching.constraint_loader import ConstraintLoader, LoadedConstraint
from sapwood.constrained.matching.interface import TokenConstraint
from sapwood.constrained.spec import Compiled
from sapwood.managers.wire.child import run_child
from sapwood.managers.worker.process import serve


class Panic(BaseException):
    pass


class Faulty(ConstrainedCompletion):
    fault = ""
    tokens = 0

    def fill(self, bitmask: np.ndarray) -> None:
        if self.fault == "fill" and self.tokens == 2:
            raise Panic("in fill")
        super().fill(bitmask)

    def advance(self, token_id: int) -> Any:
        if self.fault == "advance" and self.tokens == 2:
            raise Panic("in advance")
        self.tokens += 1
        return super().advance(token_id)


class FaultyLoader(ConstraintLoader):
    def load(self, compiled: Compiled) -> LoadedConstraint:
        fault = next(
            (each for each in ("load", "start", "fill", "advance") if f"{each}s".encode() in compiled.payload), ""
        )
        if fault == "load":
            raise Panic("in load")
        loaded = super().load(compiled)
        original = loaded.start

        def start(*, jump_forward: bool = True) -> TokenConstraint:
            if fault == "start":
                raise Panic("in start")
            completion = original(jump_forward=jump_forward)
            if fault:
                completion.__class__ = Faulty
                completion.fault = fault  # type: ignore[attr-defined]
            return completion

        loaded.start = start  # type: ignore[method-assign]
        return loaded


if __name__ == "__main__":
    import sapwood.constrained.matching.constraint_loader as loading

    loading.ConstraintLoader = FaultyLoader  # type: ignore[misc]
    run_child(sys.argv[1] if len(sys.argv) > 1 else "worker", serve)
