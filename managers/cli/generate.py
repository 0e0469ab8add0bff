"""`sapwood generate`: one prompt in, its completion out."""

from __future__ import annotations

import argparse
import sys

from ..front.requests.request_fields import GenerateRequest
from ..wire.errors import InvalidRequest
from .options import config_of, sampling_of
from .session import check_sampling, session


def generate(arguments: argparse.Namespace) -> int:
    """Print the completion of the prompt (or of standard input) as it comes."""
    config = config_of(arguments)
    if arguments.prompt is None and sys.stdin.isatty():
        print("Type the prompt; Ctrl-D on an empty line ends it.", file=sys.stderr, flush=True)
    prompt = sys.stdin.read() if arguments.prompt is None else arguments.prompt
    if not prompt:
        raise InvalidRequest("The prompt is empty.")
    sampling = sampling_of(arguments)
    check_sampling(sampling)
    with session(config) as engine:
        engine.print_completion(GenerateRequest(prompt=prompt, **sampling))
    print()
    return 0
