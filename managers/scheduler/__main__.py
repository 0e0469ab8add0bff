"""`python -m sapwood.managers.scheduler`: the scheduler process, started by the supervisor."""

from ..wire.child import run_child
from .process import serve

if __name__ == "__main__":
    run_child("scheduler", serve)
