"""Sapwood: a prefix-sharing LLM serving runtime. Names are loaded on first use, so that importing stays cheap."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lang.api import assistant as assistant
    from .lang.api import assistant_begin as assistant_begin
    from .lang.api import assistant_end as assistant_end
    from .lang.api import function as function
    from .lang.api import gen as gen
    from .lang.api import gen_int as gen_int
    from .lang.api import gen_string as gen_string
    from .lang.api import select as select
    from .lang.api import separate_reasoning as separate_reasoning
    from .lang.api import system as system
    from .lang.api import system_begin as system_begin
    from .lang.api import system_end as system_end
    from .lang.api import trace as trace
    from .lang.api import user as user
    from .lang.api import user_begin as user_begin
    from .lang.api import user_end as user_end
    from .lang.backends.anthropic import Anthropic as Anthropic
    from .lang.backends.base import Backend as Backend
    from .lang.backends.endpoint import RuntimeEndpoint as RuntimeEndpoint
    from .lang.backends.openai import OpenAI as OpenAI
    from .lang.defaults import flush_cache as flush_cache
    from .lang.defaults import set_default_backend as set_default_backend
    from .lang.errors import ProgramCancelled as ProgramCancelled
    from .lang.errors import ProgramError as ProgramError
    from .lang.errors import ProgramMisuse as ProgramMisuse
    from .lang.errors import Unsupported as Unsupported
    from .lang.program import Program as Program
    from .lang.sglang import Runtime as Runtime
    from .lang.state.fork_group import ForkGroup as ForkGroup
    from .lang.state.program_state import ProgramState as ProgramState
    from .lang.words.choices import greedy_token_selection as greedy_token_selection
    from .lang.words.choices import token_length_normalized as token_length_normalized
    from .lang.words.choices import total_likelihood as total_likelihood
    from .lang.words.choices import unconditional_likelihood_normalized as unconditional_likelihood_normalized
    from .managers.front.engine import Engine as Engine

__version__ = "0.1.0"

_API = "assistant assistant_begin assistant_end function gen gen_int gen_string select separate_reasoning system"
_HOMES = {
    ".lang.api": f"{_API} system_begin system_end trace user user_begin user_end",
    ".lang.backends.anthropic": "Anthropic",
    ".lang.backends.base": "Backend",
    ".lang.backends.endpoint": "RuntimeEndpoint",
    ".lang.backends.openai": "OpenAI",
    ".lang.words.choices": "greedy_token_selection token_length_normalized total_likelihood"
    " unconditional_likelihood_normalized",
    ".lang.defaults": "flush_cache set_default_backend",
    ".lang.errors": "ProgramCancelled ProgramError ProgramMisuse Unsupported",
    ".lang.program": "Program",
    ".lang.sglang": "Runtime",
    ".lang.state.fork_group": "ForkGroup",
    ".lang.state.program_state": "ProgramState",
    ".managers.front.engine": "Engine",
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = ["__version__", *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module 'sapwood' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
