"""The sandbox of chat templates: whatever a template does ends in its text or in a TemplateError, and soon."""

from __future__ import annotations

import time

import pytest

from sapwood.runtime.errors import TemplateError
from sapwood.runtime.text.chat.template import ChatTemplate
from sapwood.runtime.text.tokenizers.base import Tokenizer

NO = "{{ raise_exception('roles must alternate') }}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].missing.field }}",
        "{{ range(10**9) | list }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].parts.append(1) }}",
        "{{ messages[0].parts.pop() }}",
        "{% set l = [messages[0].parts] %}{{ l[0].append(1) }}",
        "{% set l = [1] %}{{ l.extend(l) }}",
        "{{ (messages[0].update)({}) }}",
        "{{ 'a' * 10**10 }}",
        "{{ 10 ** (10 ** 9) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    ],
)
def test_whatever_a_template_does_ends_in_a_template_error(smollm2: Tokenizer, source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source, smollm2).render([{"role": "user", "content": "hi", "parts": [[1]]}])


def test_a_template_may_fill_a_list_of_its_own(smollm2: Tokenizer) -> None:
    """Kimi K2's templates do; those that came with the conversation are left alone."""
    source = (
        "{% set n = namespace(l=[]) %}{% for m in messages %}{% set _ = n.l.append(m.content) %}{% endfor %}"
        "{{ n.l.pop(0) }}{{ n.l }}{% set all = messages[1:] %}{% set _ = all.append(1) %}{{ all|length }}"
    )
    messages = [{"role": "user", "content": each} for each in "abc"]
    for _ in range(2):
        assert ChatTemplate(source, smollm2).render(messages) == ["a['b', 'c']3"]
    assert len(messages) == 3


@pytest.mark.alone
def test_an_endless_template_is_stopped(smollm2: Tokenizer) -> None:
    source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    start = time.monotonic()
    with pytest.raises(TemplateError, match="seconds"):
        ChatTemplate(source, smollm2).render([{"role": "user", "content": "hi"}])
    assert time.monotonic() - start < 4


def test_a_refusal_carries_the_templates_own_words(smollm2: Tokenizer) -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        ChatTemplate(NO, smollm2).render([{"role": "assistant", "content": "hi"}])


def test_a_template_that_does_not_compile_is_refused_at_once(smollm2: Tokenizer) -> None:
    with pytest.raises(TemplateError, match="compile"):
        ChatTemplate("{% if %}", smollm2)


def test_generation_blocks_and_loop_controls_work(smollm2: Tokenizer) -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert ChatTemplate(source, smollm2).render(messages) == ["a"]
