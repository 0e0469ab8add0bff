"""A process that compiles constraints, one after the other, and may be killed at any time. The tokenizer starts it.

What is hostile in a grammar (endless compiling, huge memory, a crash in native code) ends with this process and harms
nobody: it holds nothing but the vocabulary. It must never outlive the tokenizer process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from ....constrained.compiler import compile_constraint
from ....constrained.spec import Constraint, ConstraintError
from ....constrained.vocabulary import Vocabulary, vocabulary_of
from ....runtime.text.tokenizers.loading import load_tokenizer
from .pipe import Done, Job, Setup, Started, ToCompiler, frame, read_frame

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read Setup, then Jobs from stdin until its end; answer on stdout."""
    _end_with_parent()
    pipe_in, pipe_out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the frames
    decoder = msgspec.msgpack.Decoder(ToCompiler)
    vocabulary: Vocabulary | None = None
    while (data := read_frame(pipe_in)) is not None:
        message = decoder.decode(data)
        if isinstance(message, Setup):
            try:
                vocabulary = _set_up(message)
            except Exception as error:
                _send(pipe_out, Done(failed=str(error)))
                return
            _send(pipe_out, Started())
        elif vocabulary is not None:
            _send(pipe_out, _compile(message, vocabulary))


def _set_up(setup: Setup) -> Vocabulary:
    """Load the vocabulary, and what llguidance keeps of it. (xgrammar is imported where a constraint names it.)"""
    vocabulary = vocabulary_of(load_tokenizer(Path(setup.model_path)))
    compile_constraint(Constraint("json_object"), vocabulary)
    _limit_memory(setup.memory_bytes)
    return vocabulary


def _compile(job: Job, vocabulary: Vocabulary) -> Done:
    try:
        return Done(compile_constraint(job.constraint, vocabulary, job.key))
    except ConstraintError as error:
        return Done(refused=str(error))
    except RecursionError:
        return Done(refused="It is nested too deeply to be compiled.")
    except MemoryError:
        return Done(refused="It takes too much memory to compile.")
    except Exception as error:
        return Done(failed=f"{type(error).__name__}: {error}")


def _send(pipe: BinaryIO, message: Started | Done) -> None:
    pipe.write(frame(message))
    pipe.flush()


def _limit_memory(more: int) -> None:
    """Let this process take `more` bytes beyond what it has now. Where the system cannot, the time limit is left."""
    status = Path("/proc/self/status")
    if not status.exists():
        return
    import resource

    kib = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData:"))
    limit = kib * 1024 + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _end_with_parent() -> None:
    """Native code does not see the end of a pipe; a signal ends it (on Linux; elsewhere it ends once it returns)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front's to handle
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


if __name__ == "__main__":
    main()
