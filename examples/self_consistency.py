"""Self-consistency: several samples of one chain of thought, and the answer that most of them come to.

python examples/self_consistency.py
"""

import re
from collections import Counter

from sapwood import Backend, Engine, ProgramState, function, gen

SHOWN = """Q: Tom has 3 apples and buys 4. How many has he got?
A: He has 3 + 4 = 7 apples. The answer is 7.
Q: A box holds 6 eggs. How many eggs are in 3 boxes?
A: There are 3 * 6 = 18 eggs. The answer is 18.
"""


@function
def vote(s: ProgramState, question: str, samples: int) -> str:
    s += SHOWN + f"Q: {question}\nA:"
    s += gen("thoughts", n=samples, max_tokens=32, stop="\n", temperature=0.7, seed=1)
    found = [re.search(r"answer is (\d+)", thought) for thought in s["thoughts"]]
    votes = Counter(each[1] for each in found if each)
    return votes.most_common(1)[0][0] if votes else "none"


def main(backend: Backend | Engine) -> None:
    state = vote.run("Ann has 10 pens and gives 4 away. How many has she got?", samples=8, backend=backend)
    for thought in state["thoughts"]:
        print(thought.strip())
    print(f"most say: {state.ret_value}")


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine)
