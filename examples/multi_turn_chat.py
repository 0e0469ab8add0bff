"""A conversation: each turn computes only what is new in it, as the report at the end shows.

python examples/multi_turn_chat.py
"""

from sapwood import Backend, Engine, ProgramState, assistant, function, gen, system, user

QUESTIONS = ["Name a tree that grows in Finland.", "How tall does it get?", "What is its wood used for?"]


@function
def interview(s: ProgramState, questions: list[str]) -> None:
    s += system("You answer in one short sentence.")
    for i, question in enumerate(questions):
        s += user(question)
        s += assistant(gen(f"answer {i}", max_tokens=24, temperature=0))


def main(backend: Backend | Engine) -> None:
    state = interview.run(QUESTIONS, backend=backend)
    for message in state.messages():
        print(f"{message['role']:>9}: {message['content']}")
    print(state.report())


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine)
