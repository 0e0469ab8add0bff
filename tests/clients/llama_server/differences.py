"""Why a test of llama.cpp's server fails against Sapwood: what is said there of the failure, and the difference.

A failure that none of these explains is a fault of Sapwood's.
"""

from __future__ import annotations

UNTRIED = "not real_model and not slow and not calc_result and not thinking"
"""Of the tests those that need no model of their own: what the others look for only that model writes."""

DIFFERENCES: tuple[tuple[str, str], ...] = (
    (
        r"Expected non empty content delta|'' is None",
        "a stream begins with the role and an empty content, as OpenAI's do",
    ),
    (r"system_fingerprint|None is not None", "answers have no system_fingerprint: it is OpenAI's to leave out"),
    (r"Sapwood has no images|_image\b|_vision_", "only text is supported"),
    (r"Sapwood has no word for several origins", "web pages are let in by their origin, each named"),
    (r"Sapwood has no (tools|a proxy|several models|embeddings|reranking|LoRA)", "not a task of this server"),
    (r"test_cors_options\[.*405 == 200", "web pages are let in nowhere unless --cors-origin says where"),
    (r"Expected 200 for /", "there are no web pages; with keys, every path but /health wants one"),
    (r"'content' in \{'id': 'cmpl", "/completions is OpenAI's /v1/completions, with its answer"),
    (r"timings_per_token|return_progress", "answers have OpenAI's shape; times are in /metrics"),
    (r"exceed_context_size_error", "too long a prompt has OpenAI's code, context_length_exceeded"),
    (r"400 == 500", "what is wrong with a request is a 400"),
    (r"__verbose|test_verbose_debug", "prompts are shown by /render and /apply-template, not in answers"),
    (r"test_anthropic_empty_messages", "a conversation has at least one message, as at Anthropic"),
    (r"test_invalid_chat_completion_req", "two turns of one role in a row are folded, not refused"),
    (r"test_chat_completions_token_count", "tokens are counted by /tokenize and /v1/messages/count_tokens"),
    (r"assert \d\d? == \d\d?\b", "another tokenizer: the tests' model cannot be fetched"),
    (
        r"START_OF_T|test_chat_template\b",
        "templates that llama.cpp has built in are unknown; --chat-template takes a file",
    ),
)
