"""Questions about long documents: each document is computed once, however many questions are asked about it.

python examples/long_documents.py
"""

from sapwood import Backend, Engine, ProgramState, assistant, function, gen, system, user

DOCUMENTS = {
    "tides": "The tide is the rise and fall of the sea under the pull of moon and sun. Most coasts have two high tides "
    "a day. Where sun and moon pull together, at new and at full moon, come the spring tides, the highest ones. ",
    "bees": "Honey bees live in hives of up to sixty thousand. A worker lives six weeks in summer and visits some "
    "thousand flowers on a good day. Bees tell each other where food is by dancing on the comb. ",
}
QUESTIONS = {
    "How many high tides has a day?": "tides",
    "When are the spring tides?": "tides",
    "How long does a worker live?": "bees",
    "How do bees tell where food is?": "bees",
}


@function
def answer(s: ProgramState, document: str, question: str) -> None:
    s += system(f"Answer in one short sentence from this text: {document * 4}")
    s += user(question)
    s += assistant(gen("answer", max_tokens=24, temperature=0, stop="\n"))


def main(backend: Backend | Engine) -> None:
    batch = [{"document": DOCUMENTS[name], "question": question} for question, name in QUESTIONS.items()]
    states = answer.run_batch(batch, backend=backend)
    for question, state in zip(QUESTIONS, states):
        print(f"{question:<34}{state['answer']}")
    reports = [state.report() for state in states]
    sent, reused = sum(r.prompt_tokens for r in reports), sum(r.cached_tokens for r in reports)
    print(f"{sent} prompt tokens were sent, {reused} of them reused")


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine)
