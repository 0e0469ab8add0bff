"""langchain-openai, unmodified, on a real server."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

langchain_openai = pytest.importorskip("langchain_openai")


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


@pytest.fixture
def chat(server_url: str) -> Any:
    return langchain_openai.ChatOpenAI(
        model="smollm2", base_url=f"{server_url}/v1", api_key=SecretStr("none"), max_retries=0, max_tokens=150, seed=1
    )


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_an_object_of_the_class(chat: Any, method: str) -> None:
    assert isinstance(chat.with_structured_output(Person, method=method).invoke("Ann is 7."), Person)


def test_structured_output_by_a_schema_is_a_dict(chat: Any) -> None:
    schema = {
        "title": "person",
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    answer = chat.with_structured_output(schema, method="json_schema", strict=True).invoke("Ann is 7.")
    assert isinstance(answer["name"], str)
    assert isinstance(answer["age"], int)


def test_bound_tools_are_called_and_streamed(chat: Any) -> None:
    bound = chat.bind_tools([Person], tool_choice="required")
    [call] = bound.invoke("Ann is 7.").tool_calls
    assert call["name"] == "Person"
    Person(**call["args"])
    whole = None
    for chunk in bound.stream("Ann is 7."):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [each["name"] for each in whole.tool_calls] == ["Person"]


def test_the_responses_api_answers_streams_and_calls(server_url: str) -> None:
    chat = langchain_openai.ChatOpenAI(
        model="smollm2",
        base_url=f"{server_url}/v1",
        api_key=SecretStr("none"),
        max_retries=0,
        max_tokens=100,
        temperature=0,
        use_responses_api=True,
    )
    whole = chat.invoke("Name a colour.")
    assert "".join(each.text for each in chat.stream("Name a colour.")) == whole.text != ""
    assert isinstance(chat.with_structured_output(Person).invoke("Ann is 7."), Person)
    calls = chat.bind_tools([Person], tool_choice="required").invoke("Ann is 7.").tool_calls
    assert {call["name"] for call in calls} == {"Person"}
