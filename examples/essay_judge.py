"""Branch, solve, merge: a judge looks at an essay from several sides at once, and sums them up.

python examples/essay_judge.py
"""

from sapwood import Backend, Engine, ProgramState, function, gen

ESSAY = (
    "A river is more than water on its way to the sea. It carries the soil that feeds the plains, it turns the mills "
    "that grind the grain, and it draws the borders over which people have fought for as long as they have written "
    "things down. Those who live beside one learn to read it: the colour that tells of rain in the hills, the sound "
    "that comes a day before the flood. Today we have straightened our rivers and put them between walls of concrete, "
    "and we are surprised when they take back in one night what we took from them in a century. Perhaps it would be "
    "wiser to give them room. A meadow that stands under water for two weeks in spring costs little, and a town that "
    "does so costs everything. Where rivers were given their old arms back, the storks have returned, and so have the "
    "people who want to see them. "
) * 2
SIDES = ["clarity of the language", "strength of the argument", "use of examples", "structure", "tone", "originality"]


@function
def judge(s: ProgramState, essay: str, sides: list[str]) -> None:
    s += f"This is an essay:\n\n{essay}\n\nA reader judges it, one side at a time.\n\n"
    forks = s.fork(len(sides))
    for side, fork in zip(sides, forks):
        fork += f"Its {side} is" + gen("judgement", max_tokens=24, stop=[".", "\n"], temperature=0)
    forks.join()
    for side, judgement in zip(sides, s["judgement"]):
        s += f"Its {side} is{judgement}.\n"
    s += "Its grade, from 1 (poor) to 9 (excellent), is" + gen("grade", max_tokens=3, temperature=0)


def main(backend: Backend | Engine) -> None:
    state = judge.run(ESSAY, SIDES, backend=backend)
    for side, judgement in zip(SIDES, state["judgement"]):
        print(f"Its {side} is{judgement}.")
    print(f"Its grade is{state['grade']}.")
    print(state.report())


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine)
