"""Stands in for the grammar compiler: what a constraint's body says is what happens. Its log is the file in argv[1]."""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from sapwood.constrained.spec import Compiled
from sapwood.managers.tokenizer.grammars.pipe import Done, Job, Started, ToCompiler, frame, read_frame

LOG = Path(sys.argv[1])


def act(body: str) -> Done:
    verb, _, rest = body.partition(" ")
    if verb == "sleep":
        time.sleep(float(rest))
    elif verb == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "crash-once" and LOG.read_text().count(body) == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    elif verb == "refuse":
        return Done(refused=f"No {rest}.")
    elif verb == "fail":
        return Done(failed="KeyError: 'x'")
    elif verb == "babble":
        sys.stdout.write("\xff" * 64)
        sys.stdout.flush()
    payload = str(os.getpid()).encode().ljust(int(rest) if rest.isdigit() else 0)
    return Done(Compiled(key=body, engine="llguidance", payload=payload))


def main() -> None:
    if len(sys.argv) > 2:  # "never starts"
        sys.exit(3)
    decoder = msgspec.msgpack.Decoder(ToCompiler)
    while (data := read_frame(sys.stdin.buffer)) is not None:
        message = decoder.decode(data)
        if isinstance(message, Job):
            with LOG.open("a") as log:
                log.write(f"{message.constraint.body}\n")
        answer = act(message.constraint.body) if isinstance(message, Job) else Started()
        sys.stdout.buffer.write(frame(answer))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
