"""A model's chat templates as an engine uses them: one given in a file, several by name, and contents of token ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from sapwood import Engine
from sapwood.managers.wire.errors import InvalidRequest
from sapwood.runtime.errors import ModelError

USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


def test_a_template_in_a_file_takes_the_place_of_the_models_own(
    fakes: Any, tiny_model: Path, tiny: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}[{{ m.role }}]<|start|>{{ m.content }}{% endfor %}", encoding="utf-8")
    with Engine(tiny_model, chat_template=str(file)) as engine:
        assert engine.render(USER).prompt == ["[user]", [tiny.token_to_id("<|start|>")], "hi"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"chat_template cannot be read from .*own\.jinja: No such file or directory\.$"),
        (b"{% for %}", r"chat_template in .*own\.jinja: the chat template does not compile: .*"),
        (b"\xff\xfe{{ x }}", r"chat_template cannot be read from .*own\.jinja: it is not text in UTF-8\.$"),
    ],
)
def test_a_file_that_is_no_template_is_refused_at_the_start(
    fakes: Any, tiny_model: Path, tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    file = tmp_path / "own.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ModelError, match=sentence):
        Engine(tiny_model, chat_template=str(file))


def test_of_several_templates_the_one_for_tools_renders_with_tools_and_ids_are_contents(
    fakes: Any, tiny_model: Path, tiny: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        shutil.copy(tiny_model / name, tmp_path)
    turns = "{% for m in messages %}<|start|>{{ m.content }}{% endfor %}"
    alternates = "{% if messages|map(attribute='role')|unique|list != ['user'] %}{{ raise_exception('no') }}{% endif %}"
    templates = [
        {"name": "default", "template": alternates + turns},
        {"name": "tool_use", "template": "TOOLS {{ tools }}" + turns},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    start = tiny.token_to_id("<|start|>")
    with Engine(tmp_path) as engine:
        assert engine.render(USER).prompt == [[start], "hi"]
        assert engine.render(USER, tools=[TOOL]).prompt == [f"TOOLS {[TOOL]}", [start], "hi"]

        content = [{"type": "text", "text": "a "}, {"type": "token_ids", "token_ids": [5, start, 7]}]
        rendering = engine.render([{"role": "user", "content": content}])
        assert rendering.prompt == [[start], "a ", [5, start, 7]]
        answer = engine.generate(messages=[{"role": "user", "content": content}], max_tokens=0, prompt_logprobs=0)
        assert [each.token_id for each in answer.prompt_logprobs or []] == [start, *tiny.encode("a ").ids, 5, start, 7]
        with pytest.raises(InvalidRequest, match="holds token id 10000") as caught:
            engine.render([{"role": "user", "content": [{"type": "token_ids", "token_ids": [10_000]}]}])
        assert caught.value.field == "messages[0].content[0].token_ids"
        with pytest.raises(InvalidRequest, match="it is no variable") as caught:
            engine.render(USER, template_kwargs={"chat_template": "x"})
        assert caught.value.field == "template_kwargs.chat_template"
        with pytest.raises(InvalidRequest, match="at least"):
            engine.generate(messages=[{"role": "user", "content": [{"type": "token_ids", "token_ids": [5] * 99_999}]}])


def test_a_message_that_the_template_leaves_out_is_named(fakes: Any, tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "last.jinja"
    file.write_text("{{ messages[-1].content }}", encoding="utf-8")
    messages = [*USER, {"role": "assistant", "content": "a"}, *USER]
    with Engine(tiny_model, chat_template=str(file)) as engine:
        for ask in (lambda: engine.render(messages), lambda: engine.generate(messages=messages)):
            with pytest.raises(InvalidRequest, match=r"messages\[0\], of role 'user', is left out") as caught:
                ask()
            assert caught.value.field == "messages[0]"
