"""The options of an engine: each declared once, checked by its declaration, and sent whole."""

from __future__ import annotations

import msgspec
import pytest

from sapwood.managers.front.keyword_options import config_from
from sapwood.managers.wire.errors import ConfigError
from sapwood.managers.wire.lifecycle import ConfigureWorker
from sapwood.managers.wire.options import OPTIONS, EngineConfig
from sapwood.runtime.options import ExecutorOptions, Option, declared


def test_every_field_is_declared_with_a_help_and_what_is_allowed():
    assert sorted(OPTIONS) == sorted(EngineConfig.__struct_fields__)
    assert dict(declared(ExecutorOptions)).items() <= OPTIONS.items()
    for name, option in OPTIONS.items():
        default = getattr(EngineConfig(), name)
        assert option.help
        assert option.complaint(default) == ""
        bounded = option.most is not None or bool(option.choices) or name == "stable_prefix_pattern"
        assert bounded or isinstance(default, bool) or name in ("model", "chat_template"), f"{name} takes anything"


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("threads", 1025, "threads must be between 0 and 1024, not 1025."),
        ("chunk_tokens", 0, "chunk_tokens must be between 1 and 1048576, not 0."),
        ("kv_memory_fraction", 0.0, "kv_memory_fraction must be above 0 and at most 0.95, not 0.0."),
        ("kv_memory_fraction", 0.96, "kv_memory_fraction must be above 0 and at most 0.95, not 0.96."),
        ("schedule", "random", "schedule must be one of lpm, fcfs; not 'random'."),
        ("model", "", "model must name a model."),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_in_one_sentence(name, value, sentence):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{name: value})
    assert str(caught.value) == sentence
    with pytest.raises(ConfigError) as caught:
        config_from({name: value})
    assert str(caught.value) == sentence


def test_the_record_travels_whole():
    sent = ConfigureWorker("/m", 99, EngineConfig(threads=3, audit=True, log_level="debug"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ConfigureWorker) == sent


def test_an_option_without_limits_has_no_complaint():
    assert Option("anything", "memory").complaint(7) == ""
