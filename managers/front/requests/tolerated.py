"""Fields of other servers, and advisory ones, that a body may have although nothing comes of them: declared once.

A field stands here only where leaving it out gives the same answer: any value of an advisory one, and of one that
could ask for something the values that ask for nothing. Null always asks for nothing. It must never hold a value that
would change what is generated. Names here are also the labels of a metric: no other name ever becomes one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...wire.errors import InvalidRequest


@dataclass(frozen=True)
class Tolerated:
    """reason: why nothing comes of it. values: those that ask for nothing; None means that all do."""

    reason: str
    values: tuple[Any, ...] | None = None

    def check(self, name: str, value: Any) -> None:
        """Raise InvalidRequest, saying what is allowed, for a value that asks for something."""
        if self.values is None or value is None or any(_same(value, each) for each in self.values):
            return
        allowed = " or ".join(json.dumps(each) for each in (*self.values, None))
        raise InvalidRequest.about((name,), f"may only be {allowed}: {self.reason}.")


def _same(value: Any, other: Any) -> bool:
    """As JSON has it: true is not 1, but 1.0 is."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _advisory(reason: str, *names: str) -> dict[str, Tolerated]:
    return dict.fromkeys(names, Tolerated(reason))


def _asks_nothing(reason: str, **values: Any) -> dict[str, Tolerated]:
    """By name: the value that asks for nothing, or a tuple of such values."""
    return {name: Tolerated(reason, each if isinstance(each, tuple) else (each,)) for name, each in values.items()}


_SAMPLING = "this way of choosing tokens is not supported"
_WITHOUT = "tunes what is off"
_SHAPE = "answers have one shape here"
_BEAMS = "tokens are sampled, there is no beam search"
_MEDIA = "only text is supported"
_PARTS = "requests are served by one engine, with one model"

TOLERATED: dict[str, Tolerated] = {
    # OpenAI
    **_advisory("it is a label for whoever sends it", "metadata", "safety_identifier", "user"),
    **_advisory("prefixes are always shared and kept as long as there is room", "prompt_cache_key"),
    **_advisory("prefixes are kept as long as there is room", "prompt_cache_retention", "prompt_cache_options"),
    **_advisory("answers of this endpoint are not kept", "store"),
    **_advisory("there is one tier", "service_tier"),
    **_advisory("a model without such a knob writes as it writes", "verbosity"),
    **_advisory("nothing is obfuscated", "stream_options.include_obfuscation"),
    **_advisory("there are no tools", "parallel_tool_calls"),
    **_asks_nothing("only conversations are thought about", reasoning_effort="none"),
    **_asks_nothing("functions were replaced by tools", functions=[], function_call=("none", "auto")),
    **_asks_nothing("there is no moderation", moderation={}),
    # vLLM, transformers and TGI
    **_asks_nothing(_BEAMS, use_beam_search=False, length_penalty=(1, 0), early_stopping=False, num_beams=1, best_of=1),
    **_asks_nothing(_BEAMS, num_beam_groups=1, diversity_penalty=0, beam_width=1),
    **_asks_nothing(
        _SAMPLING,
        bad_words=[],
        allowed_token_ids=(),
        logits_processors=[],
        no_repeat_ngram_size=0,
        repetition_detection={},
    ),
    **_asks_nothing(_SAMPLING, encoder_repetition_penalty=1, do_sample=True, watermark=False),
    **_advisory("the engine is chosen by grammar_engine", "guided_decoding_backend"),
    **_asks_nothing("whitespace is bounded by max_whitespace", guided_whitespace_pattern=()),
    **_advisory(
        "text is made of the tokens' own bytes", "spaces_between_special_tokens", "clean_up_tokenization_spaces"
    ),
    **_asks_nothing(
        "a prompt that is too long is refused, never cut", truncate_prompt_tokens=-1, truncate=(), truncation="none"
    ),
    **_asks_nothing(
        _SHAPE, return_tokens_as_token_ids=False, detokenize=True, decoder_input_details=False, details=False
    ),
    **_asks_nothing(_SHAPE, return_full_text=False, top_n_tokens=0, include_reasoning=True),
    **_asks_nothing(_MEDIA, mm_processor_kwargs={}, media_io_kwargs={}, documents=[], prompt_embeds=()),
    **_asks_nothing(
        _PARTS, kv_transfer_params={}, vllm_xargs={}, lora_request=(), adapter_id=("",), data_parallel_rank=()
    ),
    # SGLang
    **_asks_nothing("stop takes texts", stop_regex=([], "")),
    **_asks_nothing(_SAMPLING, custom_logit_processor=(), custom_params={}),
    **_asks_nothing(_SHAPE, separate_reasoning=True, stream_reasoning=True, return_hidden_states=False),
    **_asks_nothing(_SHAPE, return_routed_experts=False, return_meta_info=False, return_cached_tokens_details=False),
    **_asks_nothing(_SHAPE, return_prompt_token_ids=False, return_entropy=False, require_reasoning=False),
    **_asks_nothing(_PARTS, session_params={}, lora_path=("",), routed_dp_rank=(), background=False),
    **_asks_nothing(_PARTS, bootstrap_host=(), bootstrap_port=(), bootstrap_room=()),
    **_asks_nothing(_MEDIA, audio=(), image_data=[], video_data=[], audio_data=[], modalities=["text"]),
    **_advisory("the log has one line for each request", "log_metrics", "no_logs", "custom_labels", "routing_key"),
    **_advisory("events go out as tokens come", "stream_interval"),
    # llama.cpp
    **_asks_nothing(
        _SAMPLING, mirostat=0, mirostat_mode=0, typical_p=1, typ_p=1, tfs_z=1, tfs=1, top_a=0, min_keep=(0, 1)
    ),
    **_asks_nothing(
        _SAMPLING, dynatemp_range=0, xtc_probability=0, dry_multiplier=0, top_n_sigma=(-1, 0), adaptive_target=-1
    ),
    **_asks_nothing(_SAMPLING, penalize_nl=False, typical=1, epsilon_cutoff=0, eta_cutoff=0, penalty_alpha=0),
    **_asks_nothing(_SAMPLING, guidance_scale=1, negative_prompt="", smoothing_factor=0, dynamic_temperature=False),
    **_asks_nothing(_SAMPLING, temperature_last=False, ban_eos_token=False, custom_token_bans="", rep_pen_slope=(0, 1)),
    **_advisory(_WITHOUT, "mirostat_tau", "mirostat_eta", "mirostat_lr", "mirostat_target", "dynatemp_exponent"),
    **_advisory(_WITHOUT, "xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "adaptive_decay"),
    **_advisory(_WITHOUT, "dry_sequence_breakers", "smoothing_curve"),
    **_asks_nothing(
        "the repetition penalty looks at all of prompt and completion", repeat_last_n=-1, penalty_last_n=-1
    ),
    **_asks_nothing(
        "the order is: penalties, temperature, top_k, top_p, min_p",
        samplers=([], ["penalties", "temperature", "top_k", "top_p", "min_p"]),
    ),
    **_advisory("a prompt is never cut, nor its cache shifted", "n_keep", "n_discard", "n_cache_reuse", "num_ctx"),
    **_advisory("requests are placed by the scheduler", "id_slot", "slot_id"),
    **_advisory(
        "guesses never change an answer", "speculative.n_max", "speculative.n_min", "speculative.p_min", "draft_model"
    ),
    **_advisory("tokens are sampled where they are computed", "backend_sampling"),
    **_asks_nothing("there is no limit of time", t_max_predict_ms=(0, -1), t_max_prompt_ms=(0, -1)),
    **_asks_nothing(_SHAPE, return_tokens=False, return_progress=False, post_sampling_probs=False, response_fields=[]),
    **_asks_nothing(_SHAPE, timings_per_token=False, parse_tool_calls=True, n_indent=0),
    **_asks_nothing(
        "a grammar holds from the first token", grammar_lazy=False, grammar_triggers=[], preserved_tokens=[]
    ),
    **_asks_nothing(_PARTS, lora=[]),
    # Ollama, OpenRouter, Mistral, Fireworks, xAI and others
    **_advisory("the model stays loaded", "keep_alive", "ttl"),
    **_asks_nothing("its options stand in the request itself", options={}),
    **_advisory(_PARTS, "models", "route", "provider", "session_id", "trace"),
    **_asks_nothing(_PARTS, transforms=[], plugins=[], deferred=False, data_sources=[]),
    **_advisory("usage is counted in every answer", "usage"),
    **_advisory("prefixes are always cached", "cache_control"),
    **_asks_nothing("there is no such prompt", safe_prompt=False, prompt_mode=()),
    **_asks_nothing("a prompt that is too long is refused", context_length_exceeded_behavior="error"),
    **_asks_nothing(_SHAPE, perf_metrics_in_response=False, raw_output=False),
    **_asks_nothing("nothing is searched", search_parameters={"mode": "off"}, web_search_options=()),
    **_advisory("tools' schemas are always checked", "disable_tool_validation"),
}
"""What all bodies that complete something tolerate. A field that a body declares itself is never looked up here."""

CHAT_TOLERATED = {
    **TOLERATED,
    **_asks_nothing("the chat template writes all special tokens", add_special_tokens=False),
    **_asks_nothing("it has no meaning for messages", echo=False),
}
TEXT_TOLERATED = {
    **TOLERATED,
    **_asks_nothing("a prompt is encoded as the model's tokenizer does", add_special_tokens=True),
}
