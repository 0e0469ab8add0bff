"""The options of an engine, each declared once: the command line's flags and the checks of `Engine` derive from it.

The record travels whole to every process. Whatever is accepted here is acted on somewhere. A new option is a line here
(or, where the executor acts on it, in `runtime.options`), and its use.
"""

from __future__ import annotations

from typing import Annotated

from ...runtime.options import MODEL, SCHEDULING, ExecutorOptions, Option, declared
from ...runtime.text.chat.tools.known_formats import TOOL_FORMATS
from ...runtime.text.thoughts.marks import REASONING_FORMATS
from .errors import ConfigError
from .volatile_lines import MAX_PATTERNS, complaint_about_pattern

SCHEDULES = ("lpm", "fcfs")
TOOL_STYLES = ("auto", *TOOL_FORMATS)
REASONING_CHOICES = ("auto", "none", *REASONING_FORMATS)
SAMPLING_DEFAULTS = ("model", "openai")
LOG_LEVELS = ("debug", "info", "warning", "error")
_SOURCES = "the alias smollm2, a .gguf file, a Hugging Face directory, or a hub id"
CACHE = "~/.cache/sapwood, or $SAPWOOD_HOME"


class EngineConfig(ExecutorOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine runs a model. Construction raises ConfigError for a value that is not allowed."""

    model: Annotated[
        str,
        Option(f"{_SOURCES}; smollm2 is fetched once, into {CACHE}", MODEL, metavar="NAME"),
    ] = "smollm2"
    tp: Annotated[
        int,
        Option(
            "tensor parallelism: divide the model over so many worker processes, with a part each",
            MODEL,
            least=1,
            most=64,
        ),
    ] = 1
    tool_format: Annotated[
        str,
        Option("how the model writes tool calls; auto: as its template shows", MODEL, choices=TOOL_STYLES),
    ] = "auto"
    reasoning_format: Annotated[
        str,
        Option(
            "how the model marks what it thinks before it answers; auto: as its template or vocabulary shows; none: it "
            "stays text",
            MODEL,
            choices=REASONING_CHOICES,
        ),
    ] = "auto"
    chat_template: Annotated[
        str,
        Option("a Jinja chat template in place of the model's own", MODEL, metavar="FILE"),
    ] = ""
    sampling_defaults: Annotated[
        str,
        Option(
            "how tokens are chosen where a request does not say: as the model recommends, or as OpenAI's API does "
            "(temperature 1 and nothing else)",
            MODEL,
            choices=SAMPLING_DEFAULTS,
        ),
    ] = "model"
    log_level: Annotated[
        str,
        Option("least important event to log", MODEL, choices=LOG_LEVELS),
    ] = "info"
    chunk_tokens: Annotated[
        int,
        Option(
            "token budget of one step; a long prompt is computed in chunks of this size",
            SCHEDULING,
            least=1,
            most=2**20,
        ),
    ] = 256
    max_queue: Annotated[
        int,
        Option("most sequences that wait; beyond it requests get a 503", SCHEDULING, least=1, most=2**20),
    ] = 1024
    schedule: Annotated[
        str,
        Option("order of the queue: longest cached prefix first (ageing), or arrival", SCHEDULING, choices=SCHEDULES),
    ] = "lpm"
    prefix_cache: Annotated[
        bool,
        Option("share nothing between requests", SCHEDULING),
    ] = True
    stable_prefix: Annotated[
        str,
        Option(
            "lines of a system prompt that change (a date, an attribution) keep what is behind them from being shared: "
            "move them behind it, or drop them; answers say so in a header",
            SCHEDULING,
            choices=("off", "move", "drop"),
        ),
    ] = "off"
    stable_prefix_pattern: Annotated[
        tuple[str, ...],
        Option("a regular expression for the start of further such lines; several times", SCHEDULING, metavar="REGEX"),
    ] = ()
    quote_cached: Annotated[
        bool,
        Option(
            "where a request asks why it was not cached, do not quote what others of its salt have sent", SCHEDULING
        ),
    ] = True
    speculation: Annotated[
        bool,
        Option(
            "do not guess tokens ahead where a text was seen before (answers are the same either way)",
            SCHEDULING,
            formerly="drafts",
        ),
    ] = True
    jump_forward: Annotated[
        bool,
        Option("sample the tokens that a grammar forces one by one", SCHEDULING),
    ] = True
    audit: Annotated[
        bool,
        Option("prove the books after every step", ""),
    ] = False
    poison_freed: Annotated[
        bool,
        Option("fill freed slots with NaN", ""),
    ] = False

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError.about(("model",), "must name a model.")
        for name, option in OPTIONS.items():
            if complaint := option.complaint(getattr(self, name)):
                raise ConfigError.about((name,), complaint)
        if len(self.stable_prefix_pattern) > MAX_PATTERNS:
            raise ConfigError.about(("stable_prefix_pattern",), f"may be given {MAX_PATTERNS} times at most.")
        for pattern in self.stable_prefix_pattern:
            if complaint := complaint_about_pattern(pattern):
                raise ConfigError.about(("stable_prefix_pattern",), f"{pattern!r} {complaint}")
        if self.stable_prefix_pattern and self.stable_prefix == "off":
            text = [("stable_prefix_pattern",), " needs ", ("stable_prefix",), " to be move or drop."]
            raise ConfigError(text, ("stable_prefix_pattern",))

    @property
    def capacity(self) -> int:
        """Most sequences that may be open (running or waiting) at once."""
        return self.max_running + self.max_queue


OPTIONS = dict(declared(EngineConfig))
