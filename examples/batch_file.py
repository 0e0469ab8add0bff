"""A program over every line of a file, with a progress bar; a line that fails does not stop the others.

python examples/batch_file.py [FILE]    (one question per line; without a file, three that are built in)
"""

import sys
from pathlib import Path

from sapwood import Backend, Engine, ProgramState, assistant, function, gen, user

BUILT_IN = ["What is the capital of France?", "What colour is the sky?", "How many legs has a spider?"]


@function
def ask(s: ProgramState, question: str) -> None:
    s += user(question)
    s += assistant(gen("answer", max_tokens=24, temperature=0, stop="\n"))


def main(backend: Backend | Engine, file: Path | None = None) -> None:
    lines = BUILT_IN if file is None else file.read_text(encoding="utf-8").splitlines()
    states = ask.run_batch([(line,) for line in lines], backend=backend, progress_bar=True)
    for line, state in zip(lines, states):
        print(f"{line}\t{state['answer'] if state.error is None else f'failed: {state.error}'}")


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine, Path(sys.argv[1]) if len(sys.argv) > 1 else None)
