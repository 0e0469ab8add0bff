"""The command line: what it offers, what it refuses, and what it costs to ask."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sapwood.__main__ import main
from sapwood.managers.cli.options import config_of, sampling_of
from sapwood.managers.cli.parser import parse
from sapwood.managers.front.keyword_options import config_from
from sapwood.managers.front.requests.request_fields import GenerateRequest
from sapwood.managers.server.responses_api.response_store import USUAL_LIMITS, StoreLimits
from sapwood.managers.server.serving import bind
from sapwood.managers.wire.errors import ConfigError
from sapwood.managers.wire.options import OPTIONS, EngineConfig
from sapwood.runtime.sampling.params import DEFAULT_MAX_TOKENS

TEST_MODES = {"audit", "poison_freed"}
SWITCHES = {name for name in set(OPTIONS) - TEST_MODES if getattr(EngineConfig(), name) is True}


def test_the_defaults_of_serve_are_the_engines():
    assert config_of(parse(["serve"])) == EngineConfig()


def test_the_usual_limits_of_stored_responses_are_the_options():
    parsed = parse(["serve"])
    assert StoreLimits(parsed.responses_max, parsed.responses_bytes, parsed.responses_ttl) == USUAL_LIMITS
    assert parse(["serve", "--responses-max", "0"]).responses_max == 0


def test_every_option_of_the_engine_but_its_test_modes_is_an_option_of_serve(capsys):
    with pytest.raises(SystemExit):
        parse(["serve", "--help"])
    help_text = capsys.readouterr().out
    for field in set(EngineConfig.__struct_fields__) - TEST_MODES - SWITCHES:
        assert f"--{field.replace('_', '-')} " in help_text
    for field in SWITCHES:
        assert f"--no-{field.replace('_', '-')} " in help_text
    assert {"prefix_cache", "speculation", "jump_forward"} <= SWITCHES
    assert "--host" in help_text
    assert "--port" in help_text


def test_options_reach_the_configuration():
    line = (
        "serve --model m --threads 2 --kv-tokens 100 --kv-memory-fraction 0.5 --chunk-tokens 32 --max-running 3 "
        "--max-queue 4 --max-context 50 --no-prefix-cache --schedule fcfs --attention-backend torch --dtype float32 "
        "--kv-dtype float32 --log-level debug --no-speculation --no-jump-forward"
    )
    assert config_of(parse(line.split())) == EngineConfig(
        model="m",
        threads=2,
        kv_tokens=100,
        kv_memory_fraction=0.5,
        chunk_tokens=32,
        max_running=3,
        max_queue=4,
        max_context=50,
        prefix_cache=False,
        speculation=False,
        jump_forward=False,
        schedule="fcfs",
        attention_backend="torch",
        dtype="float32",
        kv_dtype="float32",
        log_level="debug",
    )


def test_the_old_name_of_no_speculation_still_works_hidden_and_with_a_note(capsys):
    assert config_of(parse(["serve", "--no-drafts"])).speculation is False
    assert "--no-drafts is now called --no-speculation" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["serve", "--help"])
    assert "draft" not in capsys.readouterr().out


def test_the_old_keyword_of_speculation_still_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="'drafts' is now called 'speculation'"):
        assert config_from({"drafts": False}).speculation is False
    with pytest.raises(ConfigError, match="Unknown option 'drafts'"):
        config_from({"drafts": False, "speculation": True})


def test_sampling_options_are_fields_of_a_request_and_absent_ones_keep_its_defaults():
    line = "generate hello --max-tokens 5 --temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --seed 7"
    arguments = parse([*line.split(), "--stop", "a", "--stop", "b", "--repetition-penalty", "1.1"])
    assert GenerateRequest(prompt=arguments.prompt, **sampling_of(arguments)) == GenerateRequest(
        prompt="hello",
        max_tokens=5,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        seed=7,
        stop=["a", "b"],
    )
    assert sampling_of(parse(["generate"])) == {}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("serve --kv-tokens -1", "--kv-tokens"),
        ("serve --kv-tokens many", "--kv-tokens"),
        ("serve --chunk-tokens 0", "--chunk-tokens"),
        ("serve --kv-memory-fraction 2", "--kv-memory-fraction"),
        ("serve --max-running 0", "--max-running"),
        ("serve --port 65536", "--port"),
        ("serve --port -1", "--port"),
        ("serve --responses-max many", "--responses-max"),
        ("serve --responses-bytes -1", "--responses-bytes"),
        ("serve --responses-ttl 1.5", "--responses-ttl"),
        ("serve --schedule random", "--schedule"),
        ("serve --frobnicate", "--frobnicate"),
        ("serve --model=", "--model"),
        ("generate --temperature hot", "--temperature"),
        ("fly", "fly"),
        ("", "COMMAND"),
    ],
)
def test_a_wrong_option_is_refused_by_name_with_code_2(line, named, capsys):
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("serve --prot 80", "sapwood serve: unknown option --prot; did you mean --port?"),
        ("generate x --top_p=0.5", "sapwood generate: unknown option --top_p; did you mean --top-p?"),
        ("chat --frobnicate", "sapwood chat: unknown option --frobnicate; sapwood chat --help shows all"),
        ("pull a b", "sapwood pull: unexpected argument 'b'; sapwood pull --help shows what it takes"),
        ("generate x --top-p 2", "sapwood generate: --top-p must"),
    ],
)
def test_a_refusal_says_which_command_and_what_was_meant(line, sentence, capsys):
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_without_a_command_the_help_is_shown(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "serve a model over HTTP" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["serve", "pull"])
def test_help_says_where_models_are_kept(line, capsys):
    with pytest.raises(SystemExit):
        parse([line, "--help"])
    assert "~/.cache/sapwood" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("line", "default"), [("generate", str(DEFAULT_MAX_TOKENS)), ("chat", "what the context leaves")]
)
def test_help_gives_the_default_of_max_tokens(line, default, capsys):
    with pytest.raises(SystemExit):
        parse([line, "--help"])
    assert f"most tokens of a completion (default: {default})" in " ".join(capsys.readouterr().out.split())


def test_a_taken_port_is_refused_before_anything_is_loaded(capsys):
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert f"Port {port} on 127.0.0.1 is in use; choose another with --port." in capsys.readouterr().err


def test_help_needs_none_of_the_heavy_libraries():
    code = (
        "import sys; from sapwood.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'aiohttp', 'zmq', 'numpy', 'jinja2', 'asyncio'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for command in ("serve", "chat", "generate", "pull", "bench"):
        assert f"    {command} " in done.stdout


def test_only_the_options_name_is_respelled_in_a_refusal():
    with pytest.raises(ConfigError, match=r"^--model must name a model"):
        config_of(parse(["serve", "--model", ""]))
