"""Stands in for the worker process where no model is needed. FAKE_WORKER in the environment says how it behaves."""

import os
import signal
import time

from sapwood.managers.wire.child import Child, run_child
from sapwood.managers.wire.inboxes import ToWorker
from sapwood.managers.wire.lifecycle import ConfigureWorker, ModelInfo, Shutdown
from sapwood.managers.wire.sockets import Inbox
from sapwood.runtime.errors import ModelError


def serve(child: Child) -> None:
    behaviour = os.environ.get("FAKE_WORKER", "")
    inbox: Inbox = Inbox(child.link, "worker", ToWorker)
    options = child.configuration(inbox, ConfigureWorker).options
    if behaviour == "refuses":
        raise ModelError("the weights are made of wood")
    if behaviour == "crashes":
        raise KeyError("surprise")
    if behaviour == "vanishes":
        os._exit(3)
    model = ModelInfo("fake", 1, 1, 300, 64, options.kv_tokens or 4096, 1, "none", "float32", "float32", 1)
    child.ready({"load": 0.0}, model)
    if behaviour == "is deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
    while not isinstance(inbox.receive(), Shutdown):
        pass


if __name__ == "__main__":
    run_child("worker", serve)
