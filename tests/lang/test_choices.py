"""How `select` decides: the methods by hand, and through an engine against a plain forward pass of transformers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sapwood as sgl
from sapwood import Engine, ProgramState
from sapwood.lang.words.choices import METHODS, Scored, ScoredToken, decide

TOLERANCE = 1e-4


def scored(tokens: str, logprobs: list[float], unconditional: list[float] = []) -> Scored:  # noqa: B006
    """A choice whose tokens are single letters."""
    both = zip(tokens, logprobs, strict=True)
    return Scored(tuple(ScoredToken(ord(text), text, logprob) for text, logprob in both), tuple(unconditional))


@pytest.mark.parametrize(
    ("method", "choices", "index", "scores"),
    [
        ("token_length_normalized", [scored("ab", [-1, -3]), scored("c", [-1.9])], 1, (-2, -1.9)),
        ("token_length_normalized", [scored("a", [-1]), scored("b", [-1])], 0, (-1, -1)),
        ("token_length_normalized", [scored("ab", [0, -1]), scored("c", [-0.6])], 0, (-0.5, -0.6)),  # a 0 counts
        ("total_likelihood", [scored("ab", [-1, -3]), scored("c", [-4.5])], 0, (-4, -4.5)),
        ("greedy_token_selection", [scored("ab", [-1, -9]), scored("cd", [-2, -0])], 0, (1, 0)),
        ("greedy_token_selection", [scored("abc", [-1, -2, -3]), scored("abd", [-1, -2, -1])], 1, (2, 3)),
        # One choice is the start of the other: it goes on with its own mean, -1, against -2 (and then -0.5).
        ("greedy_token_selection", [scored("ab", [-1, -1]), scored("abc", [-1, -1, -2])], 0, (3, 2)),
        ("greedy_token_selection", [scored("ab", [-1, -1]), scored("abc", [-1, -1, -0.5])], 1, (2, 3)),
        # Equal numbers of different tokens: the first one is taken, the other does not stay.
        ("greedy_token_selection", [scored("ax", [-1, -9]), scored("bx", [-1, -1])], 0, (1, 0)),
        (
            "unconditional_likelihood_normalized",
            [scored("ab", [-1, -3], [-1, -1]), scored("c", [-3], [-5])],
            1,
            (-1, 2),
        ),
    ],
)
def test_each_method_by_hand(method: str, choices: list[Scored], index: int, scores: tuple[float, ...]) -> None:
    decision = decide(method, choices)
    assert decision.index == index
    assert decision.scores == pytest.approx(scores)


# --- against transformers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama with a BPE that merges across what prompts end and choices start with, blanks among it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("small")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "-> any -> look_up -> look_at it was yes yesterday no nothing calculator search engine\n" * 20
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=["<|end|>"], initial_alphabet=alphabet)  # type: ignore
    tokenizer.train_from_iterator([text], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>").save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=330,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|end|>"),
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


class Oracle:
    """Log-probabilities by a plain forward pass over prompt and choice."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(path)
        self.tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self.end: Any = self.tokenizer.token_to_id("<|end|>")

    def scored(self, prompt: str, choices: list[str]) -> list[Scored]:
        starts = [self._start(prompt, choice) for choice in choices]
        if 0 in starts:
            return [self._scored([self.end], prompt + choice, 0) for choice in choices]
        return [self._scored([], prompt + choice, start) for choice, start in zip(choices, starts)]

    def _start(self, prompt: str, choice: str) -> int:
        """Of the choice's own tokens."""
        head, whole = self.tokenizer.encode(prompt).ids, self.tokenizer.encode(prompt + choice).ids
        return next((i for i, (a, b) in enumerate(zip(head, whole)) if a != b), len(head))

    def _scored(self, lead: list[int], text: str, start: int) -> Scored:
        whole = [*lead, *self.tokenizer.encode(text).ids]
        start += len(lead)
        ids: list[int] = whole[start:]
        conditional = self._logprobs(whole)[start - 1 :]
        free = self._logprobs([self.end, *ids])
        texts = [self.tokenizer.id_to_token(i) or "" for i in ids]
        return Scored(tuple(map(ScoredToken, ids, texts, conditional)), tuple(free))

    def _logprobs(self, ids: list[int]) -> list[float]:
        """Of every token but the first, among those that the tokenizer has: the model has rows for more."""
        import torch

        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0, :, : self.tokenizer.get_vocab_size()].double()
        return logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]].tolist()


@pytest.fixture(scope="module")
def oracle(small_path: Path) -> Oracle:
    return Oracle(small_path)


@pytest.fixture(scope="module")
def small(small_path: Path) -> Iterator[Engine]:
    with Engine(small_path, dtype="float32", kv_tokens=2048, threads=1) as engine:
        yield engine


CASES = [
    ("-> ", ["any", "look_up"]),  # row R33: the blank merges with the choice
    ("->", [" any", " look_up"]),
    ("It was ", ["look_up", "look_at", "look"]),  # shared first tokens, and one the start of the others
    ("It was", [" yes", " yesterday", " no", " nothing", "!"]),
    ("I need to use a ", ["calculator", "search engine"]),
    ("é", ["é", " é", "🚲"]),
    ("l", ["ook_up", "ook", "!"]),  # a choice changes the only token of the prompt, another does not
]


@sgl.function
def choose(s: ProgramState, prompt: str, choices: list[str], method: Any) -> None:
    s += prompt
    s += sgl.select("choice", choices, choices_method=method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("prompt", "choices"), CASES)
def test_scores_equal_a_plain_forward_pass_cold_and_warm(
    small: Engine, oracle: Oracle, prompt: str, choices: list[str], method: str
) -> None:
    expected = decide(method, oracle.scored(prompt, choices))
    small.flush_cache()
    for _ in range(3):
        state = choose.run(prompt, choices, method, backend=small)
        assert state["choice"] == choices[expected.index]
        assert list(state.meta("choice")["scores"].values()) == pytest.approx(expected.scores, abs=TOLERANCE)
        assert state.text() == prompt + choices[expected.index]


def test_the_tokens_behind_the_scores_are_shown(small: Engine, oracle: Oracle) -> None:
    meta = choose.run("-> ", ["any", "look_up"], sgl.total_likelihood, backend=small).meta("choice")
    choices = ["any", "look_up"]
    for choice, one in zip(choices, oracle.scored("-> ", choices)):
        expected = one.tokens
        shown = meta["logprobs"][choice]
        assert [each["token_id"] for each in shown] == [each.token_id for each in expected]
        assert [each["logprob"] for each in shown] == pytest.approx([each.logprob for each in expected], abs=TOLERANCE)
        assert meta["scores"][choice] == pytest.approx(math.fsum(each["logprob"] for each in shown))
    assert meta["completion_tokens"] == 0


def test_a_selection_may_come_first_and_after_generated_tokens(small: Engine, oracle: Oracle) -> None:
    @sgl.function
    def program(s: ProgramState) -> None:
        s += sgl.select("first", ["yes", "no"], choices_method=sgl.total_likelihood)
        s += " and" + sgl.gen("more", max_tokens=4, temperature=0) + sgl.select("last", [" yes", " no"])

    state = program.run(backend=small)
    choices = ["yes", "no"]
    free = {each: math.fsum(one.unconditional) for each, one in zip(choices, oracle.scored("it", choices))}
    assert state.meta("first")["scores"] == pytest.approx(free, abs=TOLERANCE)
    assert state["last"] in (" yes", " no")


def test_all_choices_take_one_request(small: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = Engine.ascore

    async def counted(self: Engine, *args: Any, **params: Any) -> Any:
        calls.append(args)
        return await real(self, *args, **params)

    monkeypatch.setattr(Engine, "ascore", counted)
    choose.run("It was", [" yes", " no", " nothing"], sgl.token_length_normalized, backend=small)
    assert len(calls) == 1
    choose.run("It was", [" yes", " no", " nothing"], sgl.unconditional_likelihood_normalized, backend=small)
    assert len(calls) == 3
