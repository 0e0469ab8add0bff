"""Whether the deterministic mode keeps its promise on a GPU, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from figures import Figures, Skipped, bounds, prefill_step, seconds_of
from models import SMALL, TINY, Place, make_runner, random_model

from sapwood.runtime.execution.runner import ModelStep


def deterministic(place: Place) -> Figures:
    """Logits of sequences alone and whole, and in company and in chunks: bit for bit the same? And how much longer a
    prefill and a decode take than in the ordinary mode."""
    if place.flashinfer is None:
        raise Skipped("FlashInfer is not installed")
    model = random_model(TINY if place.rehearsal else SMALL, place)
    lengths = (9, 14) if place.rehearsal else (300, 1, 2100, 64, 777)
    ordinary, runner = (make_runner(model, place, 8000, invariant=invariant) for invariant in (False, True))
    random = np.random.default_rng(4)
    prompts = [random.integers(0, model.config.vocab_size, n).astype(np.int32) for n in lengths]
    with torch.inference_mode():
        alone = [runner.logits(runner.forward(_part([prompt], [(0, len(prompt))]))) for prompt in prompts]
        differing = []
        for chunk in (5,) if place.rehearsal else (70, 512):
            company = _in_chunks(runner, prompts, chunk)
            differing.append(max(float((a - b).abs().max()) for a, b in zip(alone, company, strict=True)))
        tokens = 16 if place.rehearsal else 2048
        cost = {}
        for name, step in (("prefill", prefill_step(tokens, 64)), ("decode", _decodes(prompts))):
            times = [seconds_of(place, lambda r=r, step=step: r.forward(step), 10) for r in (ordinary, runner)]
            cost[name] = times[1] / times[0]
    return {"largest_difference": max(differing), "cost": cost, "ok": max(differing) == 0.0}


def _in_chunks(runner: Any, prompts: list[np.ndarray], chunk: int) -> list[torch.Tensor]:
    """Each prompt's last logits, all prompts computed side by side."""
    found: list[torch.Tensor] = [torch.empty(0)] * len(prompts)
    for start in range(0, max(map(len, prompts)), chunk):
        spans = [(start, min(start + chunk, len(prompt))) for prompt in prompts if len(prompt) > start]
        members = [i for i, prompt in enumerate(prompts) if len(prompt) > start]
        logits = runner.logits(runner.forward(_part(prompts, spans, members)))
        for place, i in enumerate(members):
            if spans[place][1] == len(prompts[i]):
                found[i] = logits[place : place + 1].clone()
    return found


def _part(prompts: list[np.ndarray], spans: list[tuple[int, int]], members: list[int] | None = None) -> ModelStep:
    """Positions [start, end) of some of the prompts; each prompt has its own run of slots."""
    members = list(range(len(spans))) if members is None else members
    firsts = bounds([len(prompt) for prompt in prompts])[:-1].tolist()
    counts = [end - start for start, end in spans]
    lists = [np.arange(firsts[i], firsts[i] + end) for i, (_, end) in zip(members, spans, strict=True)]
    return ModelStep(
        token_ids=np.concatenate([prompts[i][start:end] for i, (start, end) in zip(members, spans, strict=True)]),
        positions=np.concatenate([np.arange(start, end) for start, end in spans]).astype(np.int32),
        slots=np.concatenate([one[start:] for one, (start, _) in zip(lists, spans, strict=True)]).astype(np.int32),
        qo_indptr=bounds(counts),
        kv_indptr=bounds([len(one) for one in lists]),
        kv_indices=np.concatenate(lists).astype(np.int32),
        output_rows=bounds(counts)[1:] - 1,
    )


def _decodes(prompts: list[np.ndarray]) -> ModelStep:
    return _part(prompts, [(len(prompt) - 1, len(prompt)) for prompt in prompts])
