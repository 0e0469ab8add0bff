"""Branches that speak at the same time: the text of each is shown as it comes.

python examples/parallel_streams.py
"""

import asyncio

from sapwood import Backend, Engine, ProgramState, function, gen

SUBJECTS = ["the sea", "a forest", "the night sky"]


@function
async def openings(s: ProgramState, subjects: list[str]) -> None:
    s += "The first lines of three stories.\n\n"
    forks = s.fork(len(subjects))
    for subject, fork in zip(subjects, forks):
        fork += f"A story about {subject}:" + gen("line", max_tokens=20, temperature=0)

    async def show(number: int, fork: ProgramState) -> None:
        async for piece in fork.text_async_iter("line"):
            print(f"{number}: {piece!r}")

    await asyncio.gather(*(show(i, fork) for i, fork in enumerate(forks)))
    await forks.ajoin()


def main(backend: Backend | Engine) -> None:
    state = openings.run(SUBJECTS, backend=backend, stream=True)
    for subject, line in zip(SUBJECTS, state["line"]):
        print(f"\n{subject}:{line}")


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine)
