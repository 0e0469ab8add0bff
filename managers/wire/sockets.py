"""The sockets between the processes, and the only module that touches them.

Every process owns one inbox (a PULL socket that it binds) and pushes to the inboxes of others. Where the platform has
ipc, sockets are files in a private 0700 directory; elsewhere they are 127.0.0.1 ports. Each frame carries the run's
secret key first, so a stranger who can connect to a port still cannot speak. A frame that does not decode to one of
the inbox's message types is dropped and counted; nothing in it is ever executed.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio

ROLES = ("front", "tokenizer", "scheduler", "worker")
WORKER = "worker"  # where a model has several ranks, this is the first; the others are worker1, worker2, …
ENVIRONMENT = "SAPWOOD_LINK"  # how a child learns its link; never on the command line, where `ps` would show the key

M = TypeVar("M")


@dataclass(frozen=True)
class Link:
    """Where the inboxes of one run are, and the key that its frames carry."""

    addresses: dict[str, str]
    key: bytes
    directory: str | None

    @classmethod
    def create(cls, ranks: int = 1) -> Link:
        """A fresh set of addresses, with so many workers. Make one per engine; `remove` it at the end."""
        key = secrets.token_bytes(16)
        roles = (*ROLES, *(f"{WORKER}{rank}" for rank in range(1, ranks)))
        directory = tempfile.mkdtemp(prefix="sapwood-")  # mkdtemp gives 0700
        if zmq.has("ipc"):
            addresses = {role: f"ipc://{directory}/{role}" for role in roles}
            if max(map(len, addresses.values())) <= 100:  # a unix socket's path may hold about 107 bytes
                return cls(addresses, key, directory)
        ports = _free_ports(len(roles))
        return cls({role: f"tcp://127.0.0.1:{port}" for role, port in zip(roles, ports)}, key, directory)

    @property
    def rendezvous(self) -> str:
        """Where the ranks of a model meet, as an init_method of torch.distributed: a file that only we can reach."""
        return f"file://{self.directory}/ranks"

    @property
    def workers(self) -> list[str]:
        """The roles of the workers, in the order of their ranks."""
        return [role for role in self.addresses if role.startswith(WORKER)]

    def to_environment(self) -> str:
        return json.dumps({"addresses": self.addresses, "key": self.key.hex(), "directory": self.directory})

    @classmethod
    def from_environment(cls) -> Link:
        """The link that the parent put into the environment; taken out of there, so that it spreads no further."""
        fields = json.loads(os.environ.pop(ENVIRONMENT))
        return cls(fields["addresses"], bytes.fromhex(fields["key"]), fields["directory"])

    def remove(self) -> None:
        """Delete the directory and the socket files in it."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


class _Codec(Generic[M]):
    """Checks and decodes frames [key, payload]; counts what it drops."""

    def __init__(self, key: bytes, message_types: Any) -> None:
        self._key = key
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(message_types)
        self.dropped = 0

    def decode(self, frames: list[bytes]) -> M | None:
        if len(frames) == 2 and hmac.compare_digest(frames[0], self._key):
            try:
                return self._decoder.decode(frames[1])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
        self.dropped += 1
        return None


def _bind(socket_: zmq.Socket[Any], address: str) -> None:
    socket_.set(zmq.LINGER, 0)
    socket_.set(zmq.RCVHWM, 0)
    socket_.bind(address)
    if address.startswith("ipc://"):
        Path(address.removeprefix("ipc://")).chmod(0o600)


class Inbox(Generic[M]):
    """A process's blocking inbox. `message_types` is the union of messages it accepts (`messages.ToWorker`, …)."""

    def __init__(self, link: Link, role: str, message_types: Any) -> None:
        self._context = zmq.Context.instance()
        self._socket = self._context.socket(zmq.PULL)
        _bind(self._socket, link.addresses[role])
        self._codec: _Codec[M] = _Codec(link.key, message_types)

    @property
    def dropped(self) -> int:
        """Frames dropped so far because they did not decode."""
        return self._codec.dropped

    def receive(self, timeout: float | None = None) -> M | None:
        """The next message; None when `timeout` seconds passed without one. timeout 0 polls, None waits."""
        while True:
            if timeout is not None and not self._socket.poll(int(timeout * 1000)):
                return None
            message = self._codec.decode(self._socket.recv_multipart())
            if message is not None:
                return message

    def drain(self, timeout: float | None = None) -> list[M]:
        """Wait as `receive` does for the first message, then take all that have already arrived."""
        messages = []
        message = self.receive(timeout)
        while message is not None:
            messages.append(message)
            message = self.receive(0)
        return messages

    def close(self) -> None:
        self._socket.close()


class AsyncInbox(Generic[M]):
    """The same inbox for an asyncio process."""

    def __init__(self, link: Link, role: str, message_types: Any) -> None:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PULL)
        _bind(self._socket, link.addresses[role])
        self._codec: _Codec[M] = _Codec(link.key, message_types)

    @property
    def dropped(self) -> int:
        """Frames dropped so far because they did not decode."""
        return self._codec.dropped

    async def receive(self) -> M:
        """The next message; waits for one."""
        while True:
            message = self._codec.decode(await self._socket.recv_multipart())
            if message is not None:
                return message

    def close(self) -> None:
        self._socket.close()


class Outbox:
    """Sends to another process's inbox. Sending never blocks and never waits for the other side to exist."""

    def __init__(self, link: Link, role: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.set(zmq.LINGER, 500)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.connect(link.addresses[role])
        self._key = link.key
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: msgspec.Struct) -> None:
        """Encode and queue one message. May be called from one thread only."""
        self._socket.send_multipart([self._key, self._encoder.encode(message)])

    def close(self) -> None:
        self._socket.close()
