"""The checks of a conversation at the door: errors name the place, and nothing is accepted to be ignored."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from sapwood.managers.front.requests.render import RenderRequest, render_to_chat
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.managers.wire.requests import Chat
from sapwood.runtime.text.chat.messages import RESERVED

USER = [{"role": "user", "content": "hi"}]


def chat_of(messages: Any, **fields: Any) -> Chat:
    return render_to_chat(RenderRequest(messages=messages, **fields), vocab_size=100)


def test_variables_of_a_template_are_none_of_transformers_own_parameters() -> None:
    transformers = pytest.importorskip("transformers")
    parameters = inspect.signature(transformers.PreTrainedTokenizerBase.apply_chat_template).parameters
    own = {name for name, each in parameters.items() if each.kind is not inspect.Parameter.VAR_KEYWORD}
    # `documents` is what it hands to the template under this name
    assert own - {"self", "documents"} <= RESERVED


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_variable_that_would_be_ignored_is_refused_by_its_name(request_for: Callable[..., Any], name: str) -> None:
    for make in (request_for, lambda **fields: chat_of(**fields)):
        with pytest.raises(InvalidRequest, match="may not be set") as caught:
            make(messages=USER, template_kwargs={"enable_thinking": True, name: "x"})
        assert caught.value.field == f"template_kwargs.{name}"


def test_other_variables_go_to_the_template() -> None:
    kwargs = {"enable_thinking": False, "documents": [{"title": "a", "text": "b"}], "date_string": "today"}
    assert chat_of(USER, template_kwargs=kwargs).template_kwargs == kwargs


@pytest.mark.parametrize("role", ["king", "", None, 5, "User", "ipython", ["user"]])
def test_an_unknown_role_is_refused(role: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be one of system, developer, user") as caught:
        chat_of([*USER, {"role": role, "content": "x"}])
    assert caught.value.field == "messages[1].role"


def part(value: Any) -> Any:
    return [*USER, {"role": "assistant", "content": [{"type": "text", "text": "a"}, value]}]


def test_token_ids_may_be_part_of_a_content() -> None:
    messages = part({"type": "token_ids", "token_ids": [0, 99]})
    assert chat_of(messages).messages == messages


@pytest.mark.parametrize(
    ("value", "field", "sentence"),
    [
        ({"type": "token_ids", "token_ids": [100]}, ".token_ids", "holds token id 100; this model's ids are 0 to 99"),
        ({"type": "token_ids", "token_ids": [5, -1]}, ".token_ids", "holds token id -1"),
        ({"type": "token_ids", "token_ids": [2**70]}, ".token_ids", "holds token id"),
        ({"type": "token_ids", "token_ids": ["5"]}, ".token_ids", "must be a list of token ids"),
        ({"type": "token_ids", "token_ids": [True]}, ".token_ids", "must be a list of token ids"),
        ({"type": "token_ids", "token_ids": [1.0]}, ".token_ids", "must be a list of token ids"),
        ({"type": "token_ids", "token_ids": 5}, ".token_ids", "must be a list of token ids"),
        ({"type": "token_ids"}, ".token_ids", "must be a list of token ids"),
        ({"type": "text"}, ".text", "must be text"),
        ({"type": "image_url"}, ".type", "only 'text' and 'token_ids' are supported"),
        (5, ".type", "has the type 'int'"),
    ],
)
def test_a_part_of_another_form_is_refused_by_its_place(value: Any, field: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence) as caught:
        chat_of(part(value))
    assert caught.value.field == f"messages[1].content[1]{field}"


@pytest.mark.parametrize("bad", [5, [], {"a": 1}, True])
def test_the_id_of_a_call_is_text(bad: Any) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    for made, field in (
        ({"role": "assistant", "tool_calls": [call, {**call, "id": bad}]}, "messages[1].tool_calls[1].id"),
        ({"role": "tool", "content": "x", "tool_call_id": bad}, "messages[1].tool_call_id"),
    ):
        with pytest.raises(InvalidRequest, match="must be text") as caught:
            chat_of([*USER, made])
        assert caught.value.field == field
