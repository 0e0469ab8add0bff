"""Several questions about one document at once: the document is computed once, however many questions there are.

python examples/shared_document.py
"""

from sapwood import Engine

DOCUMENT = (
    "The Baltic Sea is an arm of the Atlantic. It is shallow, and its water is brackish: rivers bring much fresh "
    "water, and only narrow straits let salt water in. In hard winters half of it freezes. "
) * 4
QUESTIONS = ["What is it an arm of?", "What do rivers bring?", "Is it deep?", "What happens in hard winters?"]


def main() -> None:
    with Engine("smollm2") as engine:
        before = engine.stats().computed_tokens
        document = {"role": "system", "content": f"Answer in one short sentence from this text: {DOCUMENT}"}
        chats = [[document, {"role": "user", "content": question}] for question in QUESTIONS]
        answers = engine.generate(messages=chats, max_tokens=24, temperature=0, stop="\n")
        for question, answer in zip(QUESTIONS, answers):
            print(f"{question:<32}{answer.text.strip()}")
        sent = sum(answer.prompt_tokens for answer in answers)
        reused = sum(answer.cached_tokens for answer in answers)
        print(f"{sent} prompt tokens were sent, {reused} of them reused;")
        print(f"{engine.stats().computed_tokens - before} tokens were computed, the answers' own included")


if __name__ == "__main__":
    main()
