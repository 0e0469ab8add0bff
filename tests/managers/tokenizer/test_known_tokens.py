"""A conversation that goes on keeps the tokens of its earlier turns, however these would be tokenized again."""

from __future__ import annotations

import random

import pytest

from sapwood.managers.tokenizer.known_tokens import KnownTokens
from sapwood.managers.wire.requests import KnownTurn
from sapwood.runtime.records import pack_ids
from sapwood.runtime.text.chat.prompts import ChatPrompts
from sapwood.runtime.text.tokenizers.gguf_tokenizer import tokenizer_from_metadata
from sapwood.runtime.text.tokenizers.loading import load_tokenizer
from tests.runtime.text import record_llama_cpp

TRIMS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% for c in m.tool_calls or [] %}[call {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS = TRIMS.replace("m.content | trim", "(m.content.split('</think>')[-1]) | trim")
USER = {"role": "user", "content": "Tell me of the sapwood, and why it is pale."}
NEXT = {"role": "user", "content": "And  the heartwood?\n"}


@pytest.fixture(scope="module")
def tokenizer(smollm2_path):
    return load_tokenizer(smollm2_path)


def of_bytes(tokenizer, text: str) -> list[int]:
    """One token for each byte: a tokenization that no encoder gives."""
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if i not in tokenizer.control_ids}
    return [single[bytes([byte])] for byte in text.encode()]


def split_anyhow(tokenizer, text: str, seed: int) -> list[int]:
    """A text in tokens of random lengths, which may divide characters."""
    known = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if i not in tokenizer.control_ids}
    rng, data, ids = random.Random(seed), text.encode(), []
    while data:
        fitting = [n for n in range(1, 9) if data[:n] in known]
        length = rng.choice(fitting)
        ids.append(known[data[:length]])
        data = data[length:]
    return ids


class Talk:
    """One turn after the other, as a server has them."""

    def __init__(self, tokenizer, template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.prompts = ChatPrompts({"default": template or tokenizer.chat_template}, tokenizer)
        self.known = KnownTokens(tokenizer)
        self.end = sorted(tokenizer.eos_ids)[-1:]

    def fragments(self, messages):
        return self.prompts.render(messages)

    def prompt(self, messages, turns=()):
        return self.tokenizer.encode_fragments(self.known.applied(self.fragments(messages), turns))

    def text(self, messages) -> bytes:
        return b"".join(
            self.tokenizer.token_bytes(each) if isinstance(each, int) else each.encode()
            for each in self.fragments(messages)
        )

    def spelled(self, ids) -> bytes:
        return b"".join(map(self.tokenizer.token_bytes, ids))


def turn(prompt, completion, shows=()):
    return KnownTurn(pack_ids(prompt), pack_ids(completion), list(shows))


@pytest.mark.parametrize("seed", range(20))
def test_any_tokens_of_the_same_text_are_kept_over_several_turns(tokenizer, seed):
    talk, rng = Talk(tokenizer), random.Random(seed)
    texts = [
        "Pale: it carries water. ",
        "é🚲 — “quoted”\n\n* a list",
        "x",
        "def f(a):\n\treturn  a + 1\n",
        "　全角 한국어",
    ]
    messages, turns, before = [USER], [], []
    for _ in range(3):
        prompt = talk.prompt(messages, turns)
        assert prompt[: len(before)] == before
        assert talk.spelled(prompt) == talk.text(messages)
        said = rng.choice(texts)
        ends = rng.random() < 0.7
        completion = split_anyhow(tokenizer, said, rng.randrange(100)) + (talk.end if ends else [])
        turns.append(turn(prompt[len(before) :], completion))
        before = prompt + completion
        messages = [*messages, {"role": "assistant", "content": said}, NEXT]
    assert before != talk.prompt(messages)[: len(before)], "without knowing them others would be chosen"


@pytest.mark.parametrize("seed", range(5))
def test_spaces_that_a_tokenizer_adds_by_itself_are_no_difference(seed):
    tokenizer = tokenizer_from_metadata(record_llama_cpp.sentencepiece_metadata(record_llama_cpp.mistral_model()))
    turns_of = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
    )
    talk, messages, turns, before = Talk(tokenizer, turns_of), [USER], [], []
    for i, said in enumerate(("It carries water", "x  y", "日本 é")):
        prompt = talk.prompt(messages, turns)
        assert prompt[: len(before)] == before
        completion = [*split_anyhow(tokenizer, f" {said}", seed + i), *tokenizer.eos_ids]
        turns.append(turn(prompt[len(before) :], completion))
        before = prompt + completion
        messages = [*messages, {"role": "assistant", "content": said}, NEXT]
        assert talk.spelled(talk.prompt(messages, turns)) == talk.spelled(talk.prompt(messages))
    assert talk.prompt(messages)[: len(before)] != before


def test_without_known_tokens_nothing_changes(tokenizer):
    talk = Talk(tokenizer)
    assert talk.prompt([USER]) == talk.tokenizer.encode_fragments(talk.fragments([USER]))


@pytest.mark.parametrize("said", ["  pale \n", "\n\n", " pale", ""])
def test_white_space_that_a_template_strips_stays_as_it_was_generated(tokenizer, said):
    talk = Talk(tokenizer, TRIMS)
    prompt = talk.prompt([USER])
    completion = of_bytes(tokenizer, said) + talk.end
    answer = {"role": "assistant", "content": said}
    after = talk.prompt([USER, answer, NEXT], [turn(prompt, completion)])
    assert after[: len(prompt) + len(completion)] == prompt + completion
    assert talk.spelled(after[len(prompt) + len(completion) :]).startswith(b"\n<|im_start|>user")


def test_calls_stay_as_they_were_generated_where_the_template_writes_them_otherwise(tokenizer):
    talk = Talk(tokenizer, TRIMS)
    prompt = talk.prompt([USER])
    completion = of_bytes(tokenizer, '<tool_call>{"name":"look","arguments":{"a":1}}</tool_call>') + talk.end
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "user", "content": "r"}]
    after = talk.prompt(messages, [turn(prompt, completion, ["look"])])
    assert after[: len(prompt) + len(completion)] == prompt + completion
    other = talk.prompt(messages, [turn(prompt, completion, ["look", "other"])])
    assert talk.spelled(other) == talk.text(messages), "a call that the template does not show is not hidden"


@pytest.mark.parametrize("thought", ["", "well, well"])
def test_thoughts_before_a_call_are_kept_only_where_the_template_shows_them(tokenizer, thought):
    talk = Talk(tokenizer, STRIPS)
    prompt = talk.prompt([USER])
    said = f"<think>{thought}</think>" if thought else ""
    completion = of_bytes(tokenizer, f'{said}<tool_call>{{"name":"look"}}</tool_call>') + talk.end
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [USER, {"role": "assistant", "content": said, "tool_calls": [call]}, NEXT]
    after = talk.prompt(messages, [turn(prompt, completion, [thought, "look"])])
    assert after[: len(prompt)] == prompt
    kept = after[: len(prompt) + len(completion)] == prompt + completion
    assert kept == (not thought)


def test_thinking_that_a_template_strips_is_not_kept(tokenizer):
    talk = Talk(tokenizer, STRIPS)
    prompt = talk.prompt([USER])
    said = "<think>well, well</think>It is pale."
    completion = of_bytes(tokenizer, said) + talk.end
    messages = [USER, {"role": "assistant", "content": said}, NEXT]
    after = talk.prompt(messages, [turn(prompt, completion)])
    assert talk.spelled(after) == talk.text(messages)
    assert after[: len(prompt)] == prompt
    assert after == talk.prompt(messages), "what is tokenized anew is as it always would be"


def test_another_system_prompt_is_read_anew_and_as_always(tokenizer):
    talk = Talk(tokenizer)
    system = {"role": "system", "content": "You are old."}
    prompt = talk.prompt([system, USER])
    completion = of_bytes(tokenizer, "Pale.") + talk.end
    messages = [{"role": "system", "content": "You are older."}, USER, {"role": "assistant", "content": "Pale."}, NEXT]
    assert talk.prompt(messages, [turn(prompt, completion)]) == talk.prompt(messages)


def test_text_is_never_taken_for_a_control_token(tokenizer):
    talk = Talk(tokenizer)
    prompt = talk.prompt([USER])
    completion = talk.end  # the model ended at once; the client's message only spells that token
    messages = [USER, {"role": "assistant", "content": "<|im_end|>"}, NEXT]
    after = talk.prompt(messages, [turn(prompt, completion)])
    assert talk.spelled(after) == talk.text(messages)
    assert after.count(talk.end[0]) == talk.prompt(messages).count(talk.end[0])


def test_a_completion_that_ends_within_a_character_keeps_what_is_whole(tokenizer):
    talk = Talk(tokenizer)
    prompt = talk.prompt([USER])
    completion = of_bytes(tokenizer, "A 🚲")[:-2]
    shown = talk.spelled(completion).decode("utf-8", "replace")
    messages = [USER, {"role": "assistant", "content": shown}, NEXT]
    after = talk.prompt(messages, [turn(prompt, completion)])
    assert talk.spelled(after) == talk.text(messages)
    assert after[: len(prompt) + 1] == [*prompt, completion[0]]
