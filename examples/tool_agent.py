"""An agent in the manner of ReAct: it thinks, chooses a tool, reads what the tool says, and thinks again.

python examples/tool_agent.py
"""

from collections.abc import Callable

from sapwood import Backend, Engine, ProgramState, function, gen, select

HEIGHTS = {"the eiffel tower": "330 metres", "big ben": "96 metres", "the statue of liberty": "93 metres"}


def look_up(what: str) -> str:
    """The tool `look_up`."""
    return HEIGHTS.get(what.strip(" .\"'").lower(), "nothing was found")


TOOLS: dict[str, Callable[[str], str]] = {"look_up": look_up}
SHOWN = """Answer questions. You may look_up the height of a building, and finish with the answer.

Question: How tall is Big Ben?
Thought: I do not know the height of Big Ben, so I look it up.
Action: look_up
Input: Big Ben
Observation: 96 metres
Thought: Now I know the answer.
Action: finish
Input: 96 metres

Question: How tall is the Statue of Liberty?
Thought: I do not know the height of the Statue of Liberty, so I look it up.
Action: look_up
Input: the Statue of Liberty
Observation: 93 metres
Thought: Now I know the answer.
Action: finish
Input: 93 metres

"""


@function
def react(s: ProgramState, question: str, most_rounds: int = 3) -> str:
    s += SHOWN + f"Question: {question}\n"
    for round_ in range(most_rounds):
        s += "Thought:" + gen(f"thought {round_}", max_tokens=24, stop="\n", temperature=0) + "\n"
        s += "Action: " + select(f"action {round_}", [*TOOLS, "finish"]) + "\n"
        s += "Input:" + gen(f"input {round_}", max_tokens=16, stop="\n", temperature=0) + "\n"
        action, argument = s[f"action {round_}"], s[f"input {round_}"]
        if action == "finish":
            return argument.strip()
        s += f"Observation: {TOOLS[action](argument)}\n"
    return "no answer"


def main(backend: Backend | Engine) -> None:
    state = react.run("How tall is the Eiffel Tower?", backend=backend)
    print(state.text()[len(SHOWN) :])
    print(f"the answer: {state.ret_value}")


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine)
