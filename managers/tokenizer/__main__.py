"""`python -m sapwood.managers.tokenizer`: the tokenizer process, started by the supervisor."""

from ..wire.child import run_child
from .process import serve

if __name__ == "__main__":
    run_child("tokenizer", serve)
