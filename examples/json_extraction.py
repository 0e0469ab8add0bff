"""JSON that fits: what is read from a text is an instance of a pydantic model, always.

python examples/json_extraction.py    (needs pydantic)
"""

from typing import Literal

from pydantic import BaseModel, Field

from sapwood import Backend, Engine, ProgramState, assistant, function, gen, user

TEXTS = ["Anna is 31 and mends bicycles in Turku.", "At 58, Paavo still drives his taxi through Oulu every night."]


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    work: Literal["bicycles", "taxi", "other"]


@function
def extract(s: ProgramState, text: str) -> Person:
    s += user(f"Who is this about? Answer in JSON with name, age and work.\n\n{text}")
    s += assistant(gen("person", json_schema=Person, max_tokens=60, temperature=0))
    return Person.model_validate_json(s["person"])


def main(backend: Backend | Engine) -> None:
    for state in extract.run_batch([{"text": text} for text in TEXTS], backend=backend):
        print(repr(state.ret_value))


if __name__ == "__main__":
    with Engine("smollm2") as engine:
        main(engine)
