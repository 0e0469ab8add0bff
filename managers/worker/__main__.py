"""`python -m sapwood.managers.worker [ROLE]`: a worker process: ROLE tells the ranks apart."""

import sys

from ..wire.child import run_child
from ..wire.sockets import WORKER
from .process import serve

if __name__ == "__main__":
    run_child(sys.argv[1] if len(sys.argv) > 1 else WORKER, serve)
