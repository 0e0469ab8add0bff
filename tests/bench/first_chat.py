"""What the first answers of the bundled model look like to whoever tries it: `python -m tests.bench.first_chat`.

Twenty everyday questions, one request each, at default settings. A table of them all, then how many ended by themselves
within 300 tokens and how many hold foreign scripts or go round in circles; `--show` prints the answers, to be read.
`--set temperature=0.2 --set top_p=0.9` compares with other settings, `--seeds N` asks each question N times.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from sapwood import Engine

QUESTIONS = (
    "What is the capital of France?",
    "How do I boil an egg?",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "What is photosynthesis?",
    "Give me three tips for sleeping better.",
    "Who was Albert Einstein?",
    "How do I make a cup of tea?",
    "What should I pack for a weekend trip?",
    "Explain gravity to a child.",
    "Suggest a name for a cat.",
    "What is the difference between a fruit and a vegetable?",
    "How can I learn a new language?",
    "Tell me a joke.",
    "What is 12 times 4?",
    "Write a polite e-mail asking for a day off.",
    "What are the seasons of the year?",
    "How does a bicycle stay upright?",
    "What is a good breakfast?",
    "Hello! Who are you?",
)
MAX_TOKENS = 300


def foreign(text: str) -> float:
    """The share of letters that no English text has."""
    letters = [each for each in text if each.isalpha()]
    return sum(not each.isascii() for each in letters) / max(1, len(letters))


def in_circles(text: str) -> float:
    """The share of runs of eight words that came before."""
    words = re.findall(r"\w+", text.lower())
    runs = [tuple(words[i : i + 8]) for i in range(len(words) - 7)]
    return 1 - len({*runs}) / max(1, len(runs)) if runs else 0.0


def readable(text: str) -> bool:
    """Whether it is worth being read by a person; who reads it decides."""
    return bool(text.strip()) and foreign(text) < 0.01 and in_circles(text) < 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    fields: dict[str, Any] = {name: float(value) for name, _, value in (each.partition("=") for each in arguments.set)}
    ended = legible = 0
    with Engine(arguments.model, kv_tokens=16384, log_level="error") as engine:
        print(f"defaults: {engine.info.sampling} ({engine.info.sampling.source}); set: {fields or 'nothing'}")
        for seed in range(arguments.seeds):
            asked = [[{"role": "user", "content": question}] for question in QUESTIONS]
            answers = engine.generate(messages=asked, max_tokens=MAX_TOKENS, seed=seed, **fields)
            for question, answer in zip(QUESTIONS, answers):
                text, stopped = answer.text, answer.completions[0].finish.reason == "stop"
                ended += stopped
                legible += readable(text)
                figures = f"foreign {foreign(text):5.1%}  in circles {in_circles(text):4.0%}"
                tokens = len(answer.completions[0].token_ids)
                print(f"{question:56} {'ended' if stopped else 'CUT  '} {tokens:3} tokens  {figures}")
                if arguments.show:
                    print(f"    {text.strip()}\n".replace("\n", "\n    "))
    count = len(QUESTIONS) * arguments.seeds
    print(f"{ended} of {count} ended by themselves within {MAX_TOKENS} tokens; {legible} of {count} look readable")


if __name__ == "__main__":
    main()
