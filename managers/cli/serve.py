"""`sapwood serve`: take the port, load the model, say how to use it, and serve until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import time
from importlib.metadata import version

from ..front.front import Front
from ..server.access import Access, read_keys
from ..server.responses_api.response_store import StoreLimits
from ..server.server_state import ServerState
from ..server.serving import Server, address_of, bind
from ..wire.logs import start_logging
from .options import config_of


def serve(arguments: argparse.Namespace, began: float) -> int:
    """Serve; the exit code. Raises ConfigError or PortTaken before anything is loaded."""
    config = config_of(arguments)
    access = Access(read_keys(arguments.api_key, arguments.api_key_file))
    with bind(arguments.host, arguments.port) as listener:
        start_logging("server", config.log_level)
        url = address_of(listener)
        print(f"Listening on {url}; loading {config.model} ...", flush=True)
        imports = time.perf_counter() - began

        def announce(state: ServerState) -> None:
            total = time.perf_counter() - began
            print(_announcement(url, state.model_name, state.front, imports, total), flush=True)

        limits = StoreLimits(arguments.responses_max, arguments.responses_bytes, arguments.responses_ttl)
        server = Server(
            Front(config),
            config.model,
            listener,
            announce,
            access=access,
            response_limits=limits,
            names=[name for names in arguments.served_model_name for name in names],
            strict_names=arguments.strict_model_name,
            origins=arguments.cors_origin,
        )
        return asyncio.run(server.run())


def _announcement(url: str, name: str, front: Front, imports: float, total: float) -> str:
    info, workers = front.info, front.config.tp
    model = info.model
    spent = {"imports": imports, **{part: seconds for part, seconds in info.timings.items() if part != "total"}}
    pool_gib = model.kv_bytes / 2**30
    pool = f"{pool_gib:.1f} GiB" if pool_gib >= 1 else f"{pool_gib * 1024:,.0f} MiB"
    message = '{"messages": [{"role": "user", "content": "What is sapwood?"}], "max_tokens": 100, "temperature": 0}'
    return "\n".join(
        (
            f"Sapwood {version('sapwood')} serves {name} at {url}",
            f"  model    {model.architecture}, {model.parameters / 1e6:,.0f}M parameters, {model.dtype}, "
            f"{model.attention_backend} attention, {model.threads} threads"
            + (f" in each of {workers} workers" if workers > 1 else ""),
            f"  KV pool  {model.total_slots:,} tokens, up to {pool}; context {info.max_context:,} tokens",
            f"  sampling {info.sampling} ({info.sampling.source}), where a request does not say",
            f"  ready in {total:.1f} s: " + ", ".join(f"{part} {seconds:.2f}" for part, seconds in spent.items()),
            f"  try      curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{message}'",
        )
    )
