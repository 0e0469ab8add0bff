"""Few-shot classification: the shown cases are computed once for all reviews, and each label is chosen, not hoped for.

python examples/few_shot_select.py
"""

from sapwood import Backend, Engine, ProgramState, function, select

SHOWN = """Review: A joy from start to end.
Sentiment: positive

Review: I want my money back.
Sentiment: negative

Review: My children watch it every evening.
Sentiment: positive

Review: It fell apart in my hands.
Sentiment: negative

"""
REVIEWS = [
    "I loved every minute of it.",
    "It broke after two days.",
    "The worst film of the year.",
    "Simply wonderful!",
]


@function
def classify(s: ProgramState, review: str) -> None:
    s += SHOWN
    s += f"Review: {review}\nSentiment:" + select("label", [" positive", " negative"])


def main(backend: Backend | Engine) -> None:
    for review, state in zip(REVIEWS, classify.run_batch([{"review": each} for each in REVIEWS], backend=backend)):
        meta = state.meta("label")
        scores = ", ".join(f"{label.strip()} {score:.2f}" for label, score in meta["scores"].items())
        print(f"{review:<32}{state['label'].strip():<10}({scores})")


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine)
