"""instructor, unmodified, on a real server."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

instructor = pytest.importorskip("instructor")


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


MODES = ["TOOLS", "JSON_SCHEMA"]  # with JSON, the schema is only in the prompt
MESSAGES = [{"role": "user", "content": "Ann is 7 years old."}]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_an_object_at_the_first_try(server_url: str, mode: str) -> None:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as plain:
        client: Any = instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))
        person = client.chat.completions.create(
            model="smollm2", messages=MESSAGES, response_model=Person, max_retries=0, max_tokens=150, seed=1
        )
    assert isinstance(person, Person)


def test_a_partial_object_grows(server_url: str) -> None:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as plain:
        client: Any = instructor.from_openai(plain)
        partial = client.chat.completions.create_partial(
            model="smollm2", messages=MESSAGES, response_model=Person, max_retries=0, max_tokens=150, seed=1
        )
        states = list(partial)
    assert states[-1].name is not None
    assert states[-1].age is not None
