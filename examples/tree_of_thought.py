"""Tree of thought: several first steps, several second ones from each, each line of thought graded, the best continued.

The task and the steps before are the same for all that branches from them, and are computed once.

python examples/tree_of_thought.py
"""

from sapwood import Backend, Engine, ProgramState, function, gen

SHOWN = """Solve each problem step by step.

Problem: A farmer has 12 sheep, sells a third of them, and then buys 5. How many sheep has he got?
Step 1: A third of 12 sheep is 12 / 3 = 4 sheep, so he sells 4 and has 12 - 4 = 8 sheep left.
Step 2: He buys 5 more, and 8 + 5 = 13.
Answer: 13

Problem: A train covers 60 miles in an hour. How far does it get in two and a half hours?
Step 1: In two hours it covers 2 * 60 = 120 miles, and in half an hour 60 / 2 = 30 miles.
Step 2: Together that makes 120 + 30 = 150 miles.
Answer: 150

Problem: Three friends share a bill of 54 dollars evenly, and each adds 2 dollars as a tip. What does each one pay?
Step 1: The bill divided by three is 54 / 3 = 18 dollars for each of them.
Step 2: With the tip each one pays 18 + 2 = 20 dollars.
Answer: 20

Problem: A shop sells pens at 3 for 2 dollars. What do 12 pens cost?
Step 1: 12 pens are 12 / 3 = 4 times 3 pens.
Step 2: Each time they cost 2 dollars, so they cost 4 * 2 = 8 dollars.
Answer: 8

"""
PROBLEM = "A baker bakes 40 rolls, sells half of them in the morning and 8 in the afternoon. How many are left?"


@function
def solve(s: ProgramState, problem: str, width: int) -> None:
    """Two levels of `width` branches each; the variable `answer` is that of the line judged best."""
    s += SHOWN + f"Problem: {problem}\n"
    firsts = s.fork(width)
    for i, first in enumerate(firsts):
        first += "Step 1:" + gen("step", max_tokens=24, stop="\n", temperature=0.8, seed=i) + "\nStep 2:"
    leaves: list[ProgramState] = []
    for first in firsts:
        seconds = first.fork(width)
        for i, second in enumerate(seconds):
            second += gen("step 2", max_tokens=24, stop="\n", temperature=0.8, seed=i)
            second += "\nIs this right? From 1 (wrong) to 9 (right) it gets a"
            second += gen("grade", max_tokens=2, temperature=0)
        leaves += seconds
    best = max(leaves, key=lambda leaf: _number(leaf["grade"]))
    s += f"Step 1:{best['step']}\nStep 2:{best['step 2']}\nAnswer:"
    s += gen("answer", max_tokens=6, stop="\n", temperature=0)


def _number(text: str) -> int:
    """The first digit of a grade; 0 where there is none."""
    return next((int(character) for character in text if character in "123456789"), 0)


def main(backend: Backend | Engine) -> None:
    state = solve.run(PROBLEM, width=3, backend=backend)
    print(state.text()[len(SHOWN) :])
    report = state.report()
    prompt, computed = report.prompt_tokens, report.computed_tokens
    print(f"{len(report.steps)} steps with {prompt} prompt tokens, {computed} of them computed")


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine)
