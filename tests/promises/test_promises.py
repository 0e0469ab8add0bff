"""The promises of design section 5, end to end through all four processes: bit for bit with the CPU kernels."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sapwood import Engine
from sapwood.managers.front.generation import Generation
from sapwood.runtime.errors import ModelError

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a land of 1000 lakes,",
    "Q: What is 17 + 25?\nA:",
    "안녕하세요, 저는",
    "The three primary colours are",
]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": 0}


def assert_same(one: Generation, other: Generation, tolerance: float) -> None:
    """The same tokens and text, and the same log-probabilities to the tolerance."""
    assert one.token_ids == other.token_ids
    assert one.text == other.text
    assert one.logprobs is not None
    assert other.logprobs is not None
    ours, theirs = ([token.logprob for token in each.logprobs or []] for each in (one, other))
    assert ours == pytest.approx(theirs, abs=tolerance, rel=0)


def assert_books_balance(engine: Engine) -> None:
    """Nothing runs or is held any more, and every slot is free or evictable."""
    deadline = time.monotonic() + 5
    while True:
        stats = engine.stats()
        if stats.running == stats.waiting == stats.private == stats.pinned == 0:
            break
        assert time.monotonic() < deadline, stats
        time.sleep(0.02)
    assert stats.free + stats.evictable == stats.total


def random_tree(rng: random.Random, count: int, *, depth: int, longest: int, vocabulary: range) -> list[list[int]]:
    """Prompts that share prefixes at random: each extends or branches off an earlier one."""
    prompts = [[rng.choice(vocabulary) for _ in range(longest // 2)]]
    while len(prompts) < count:
        base = rng.choice(prompts[-depth:])
        kept = base[: rng.randrange(len(base) + 1)]
        tail = [rng.choice(vocabulary) for _ in range(rng.randrange(1, longest // 2))]
        prompts.append((kept + tail)[:longest])
    return prompts


def test_stream_equals_whole(smollm2: Engine) -> None:
    for prompt in PROMPTS:
        whole = smollm2.generate(prompt, **GREEDY)
        chunks = list(smollm2.generate_stream(prompt, **GREEDY))
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert [token for chunk in chunks for token in chunk.token_ids] == whole.token_ids


@pytest.mark.slow_with("torch")
def test_alone_equals_in_company(smollm2: Engine, tolerance: float) -> None:
    """In a batch of 32, half of which share a prefix that attention reads once for all of them."""
    prefix = "You are a careful assistant. " * 20
    prompts = [*PROMPTS, *(prefix + prompt for prompt in PROMPTS)]
    alone = [smollm2.generate(prompt, **GREEDY) for prompt in prompts]
    smollm2.flush_cache()
    others = [f"{prefix if i % 2 else ''}Number {i} is" for i in range(32 - len(prompts))]
    company = smollm2.generate([*prompts, *others], **GREEDY)
    for one, other in zip(alone, company):
        assert_same(one, other, tolerance)


def test_a_sampled_answer_depends_on_its_seed_and_nothing_else(smollm2: Engine) -> None:
    params: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 12, "seed": 7}
    alone = smollm2.generate(PROMPTS[0], **params).text
    smollm2.flush_cache()
    company = smollm2.generate([PROMPTS[0]] * 4, **params)
    assert {generation.text for generation in company} == {alone}
    assert smollm2.generate(PROMPTS[0], **{**params, "seed": 8}).text != alone


@pytest.mark.slow_with("torch")
def test_warm_equals_cold_at_every_split(smollm2: Engine, cold_smollm2: Engine, tolerance: float) -> None:
    prompt = "In a hole in the ground there lived a hobbit. Not a nasty,"
    cold = cold_smollm2.generate(prompt, **GREEDY)
    whole = smollm2.generate(prompt, max_tokens=0, prompt_logprobs=0)
    token_ids = [token.token_id for token in whole.prompt_logprobs or []]
    for split in range(1, len(token_ids) + 1):
        smollm2.flush_cache()
        smollm2.generate(token_ids[:split], max_tokens=0)
        warm = smollm2.generate(prompt, **GREEDY)
        assert warm.cached_tokens == min(split, len(token_ids) - 1)
        assert_same(warm, cold, tolerance)


def test_scores_are_the_same_cold_and_warm(smollm2: Engine, tolerance: float) -> None:
    prompt, choices = "The sky is", [" blue", " green", " blue today", " bl"]
    smollm2.flush_cache()
    cold = smollm2.score(prompt, choices)
    warm = smollm2.score(prompt, choices)
    assert [score.logprob for score in cold] == pytest.approx([score.logprob for score in warm], abs=tolerance, rel=0)
    assert cold[0].logprob > cold[1].logprob


@pytest.mark.slow_with("torch")
def test_chunk_size_changes_nothing(
    smollm2: Engine, smollm2_path: Path, modes: dict[str, Any], tolerance: float
) -> None:
    prompt = " ".join(f"item {i}," for i in range(60))
    with Engine(smollm2_path, kv_tokens=4096, chunk_tokens=17, **modes) as chunked:
        assert_same(chunked.generate(prompt, **GREEDY), smollm2.generate(prompt, **GREEDY), tolerance)


@pytest.mark.slow_with("torch")
def test_the_number_of_threads_changes_nothing(smollm2_path: Path, modes: dict[str, Any], tolerance: float) -> None:
    prompts = [PROMPTS[0], " ".join(f"item {i}," for i in range(60))]
    answers = []
    for threads in (1, 2, 3):
        with Engine(smollm2_path, kv_tokens=2048, threads=threads, **modes) as engine:
            answers.append(engine.generate(prompts, **GREEDY))
    for other in answers[1:]:
        for one, same in zip(answers[0], other):
            assert_same(one, same, tolerance)


@pytest.mark.slow_with("torch")
def test_three_hundred_requests_over_a_random_tree_equal_their_solo_answers(
    tiny_path: Path, modes: dict[str, Any], tolerance: float
) -> None:
    """The pool is far too small for them, so they wait, are evicted, retracted and resumed."""
    rng = random.Random(5)
    prompts = random_tree(rng, 300, depth=40, longest=120, vocabulary=range(255))
    params: list[dict[str, Any]] = [
        {"temperature": 0, "max_tokens": rng.choice([3, 5, 9, 60]), "logprobs": 0} for _ in prompts
    ]
    with Engine(tiny_path, kv_tokens=4096, prefix_cache=False, **modes) as engine:
        solo = [engine.generate(prompt, **param) for prompt, param in zip(prompts, params)]
    with Engine(tiny_path, kv_tokens=180, chunk_tokens=64, max_running=16, **modes) as engine:
        together: dict[int, Generation] = {}
        errors: list[Exception] = []

        def ask(place: int) -> None:
            try:
                together[place] = engine.generate(prompts[place], **params[place])
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert_books_balance(engine)
        stats = engine.stats()
        assert stats.retracted > 0
        assert stats.evicted_tokens > 0
    for place, one in enumerate(solo):
        assert_same(together[place], one, tolerance)


@pytest.mark.slow_with("torch")
def test_requests_that_do_not_fit_together_all_end_with_their_solo_text(
    smollm2_path: Path, cold_smollm2: Engine, modes: dict[str, Any], tolerance: float
) -> None:
    """R28 (b), and (a): a request that wants more than the pool is capped and ends with `length`."""
    prompts = [f"{name} walked into the forest and" for name in ("Anna", "Boris", "Clara")]
    params: dict[str, Any] = GREEDY | {"max_tokens": 60}
    with Engine(smollm2_path, kv_tokens=120, **modes) as engine:
        for one, prompt in zip(engine.generate(prompts, **params), prompts):
            assert_same(one, cold_smollm2.generate(prompt, **params), tolerance)
        assert engine.stats().retracted > 0
        alone = engine.generate(prompts[0], temperature=0, max_tokens=400, ignore_eos=True)
        assert alone.finish_reason == "length"
        assert alone.prompt_tokens + len(alone.token_ids) == 120
        assert_books_balance(engine)


@pytest.mark.slow_with("torch")
def test_sampling_penalties_and_seed_survive_retraction(
    smollm2_path: Path, cold_smollm2: Engine, modes: dict[str, Any], tolerance: float
) -> None:
    params: dict[str, Any] = {
        "temperature": 0.8,
        "seed": 3,
        "max_tokens": 50,
        "ignore_eos": True,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "logprobs": 0,
    }
    prompts = [f"The {name} said:" for name in ("king", "queen", "jester")]
    with Engine(smollm2_path, kv_tokens=80, **modes) as engine:
        for one, prompt in zip(engine.generate(prompts, **params), prompts):
            assert_same(one, cold_smollm2.generate(prompt, **params), tolerance)
        assert engine.stats().retracted > 0


def test_a_higher_priority_does_not_wait_for_a_lower_one_which_goes_on_as_if_it_had_run_alone(
    tiny_path: Path, modes: dict[str, Any], tolerance: float
) -> None:
    sampled: dict[str, Any] = {"temperature": 0.9, "seed": 4, "ignore_eos": True, "logprobs": 0, "max_tokens": 600}
    with Engine(tiny_path, max_running=1, kv_tokens=2000, **modes) as engine:
        alone = engine.generate("The low one", **sampled)
        engine.flush_cache()
        low = engine.generate_stream("The low one", priority=-1, **sampled)
        chunks = [next(low)]
        high = engine.generate("The high one", priority=100, max_tokens=5, temperature=0)
        assert high.finish_reason == "length"
        assert engine.stats().retracted == 1
        assert engine.stats().running + engine.stats().waiting == 1, "the high one had to wait for the low one's end"
        chunks += low
        assert [token for chunk in chunks for token in chunk.token_ids] == alone.token_ids
        logprobs = [each.logprob for chunk in chunks for each in chunk.logprobs or []]
        assert logprobs == pytest.approx([each.logprob for each in alone.logprobs or []], abs=tolerance, rel=0)
        assert_books_balance(engine)


def test_a_new_prefix_that_many_share_is_computed_once(smollm2: Engine) -> None:
    """The distinct tokens plus at most 5 %."""
    smollm2.flush_cache()
    before = smollm2.stats().computed_tokens
    prefix = [1000 + i for i in range(400)]
    prompts = [prefix + [5000 + 40 * i + j for j in range(24)] for i in range(10)]
    answers = smollm2.generate(prompts, temperature=0, max_tokens=1)
    computed = smollm2.stats().computed_tokens - before
    assert computed <= 1.05 * (400 + 10 * 24)
    assert sum(answer.prompt_tokens - answer.cached_tokens for answer in answers) == computed


def test_a_tokenizer_with_more_ids_than_the_model_is_refused_at_the_start(
    tiny_path: Path, tmp_path: Path, test_modes: dict[str, Any]
) -> None:
    for file in tiny_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["Ġextra"] = 256
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="257 token ids, the model embeddings for 256"):
        Engine(tmp_path, **test_modes)


@pytest.mark.slow_with("torch")
def test_guessing_ahead_changes_nothing(smollm2_path: Path, modes: dict[str, Any]) -> None:
    """Whatever a guess comes from, a stream of its own or a crowd, and whether it comes true or not."""
    tolerance = 0 if modes["attention_backend"] == "cpu" else 1e-4
    repeats = "red, green, blue, red, green, blue, red, green, blue,"
    sampled = GREEDY | {"temperature": 0.9, "seed": 5, "frequency_penalty": 0.3}
    wanted = [(repeats, GREEDY | {"max_tokens": 20}), (PROMPTS[2], sampled | {"max_tokens": 20})]
    others = [
        (prompt, options | {"temperature": options["temperature"] + 0.15, "seed": 5}) for prompt, options in wanted
    ]
    with Engine(smollm2_path, kv_tokens=4096, speculation=False, **modes) as engine:
        expected, expected_others = (
            [engine.generate(prompt, **options) for prompt, options in each] for each in (wanted, others)
        )
        assert engine.stats().speculated_tokens == 0
    with Engine(smollm2_path, kv_tokens=4096, **modes) as engine:
        answers: list[Generation] = []
        for _ in range(2):  # the second time the tree knows the answers
            answers = [engine.generate(prompt, **options) for prompt, options in wanted]
            for answer, right in zip(answers, expected, strict=True):
                assert_same(answer, right, tolerance)
        for effort in [answer.effort for answer in answers]:
            assert effort is not None
            assert effort.accepted == effort.speculated > 12
            assert effort.forward_passes < 8
        for answer in engine.generate([repeats] * 4, **wanted[0][1]):
            assert_same(answer, expected[0], tolerance)
        for (prompt, options), right in zip(others, expected_others, strict=True):  # they part from it sooner or later
            assert_same(engine.generate(prompt, **options), right, tolerance)
        stats = engine.stats()
        assert 0 < stats.accepted_tokens < stats.speculated_tokens
        assert_books_balance(engine)
