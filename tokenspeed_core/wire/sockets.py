# SPDX-License-Identifier: MIT
"""ZMQ sockets of one connection each, and a way to wake a thread that polls them.

Left to itself a ZMQ socket connects again behind one's back, to a peer that knows nothing of what
was agreed with the last one. These do not: a connection that dropped, or never came about, is
`is_lost` for good, and whoever wants another opens another socket.
"""

from __future__ import annotations

import math
import socket as plain
from collections.abc import Sequence
from contextlib import suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

from tokenspeed_core.keyed_address import connect, shown
from tokenspeed_core.wire.packing import WireError

CONNECTED = zmq.Event.HANDSHAKE_SUCCEEDED
LOST = (
    zmq.Event.DISCONNECTED
    | zmq.Event.CLOSED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)


class WatchedSocket:
    """A connected DEALER or PUSH that notices the end of its one connection.

    WireError: the address is none.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: zmq.SocketType,
        *,
        address: str,
        options: dict[zmq.SocketOption, int | bytes],
    ) -> None:
        self.is_connected = False
        self.is_lost = False
        self.socket = context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        for name, value in options.items():
            self.socket.setsockopt(name, value)
        self.monitor = self.socket.get_monitor_socket(CONNECTED | LOST)
        try:
            connect(self.socket, address)
        except zmq.ZMQError as error:
            self.close()
            raise WireError(f"cannot connect to {shown(address)!r}: {error}") from error

    def watch(self, poller: zmq.Poller) -> None:
        """Let this poller wake for messages, and for changes of the connection."""
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)

    def look(self) -> None:
        """Learn what became of the connection."""
        with suppress(zmq.Again):
            while True:
                frames = self.monitor.recv_multipart(zmq.NOBLOCK)
                event = parse_monitor_message(frames)["event"]
                self.is_connected = self.is_connected or event == CONNECTED
                self.is_lost = self.is_lost or bool(event & LOST)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message unless that would wait; whether it was taken."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[bytes] | None:
        """A message that is there, or None."""
        # Asking costs a fraction of an exception.
        if not int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return None
        return self.socket.recv_multipart(zmq.NOBLOCK)

    def close(self, linger_s: float = 0.0) -> None:
        """Close the connection; what was sent has so long to leave."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(milliseconds(linger_s))


def milliseconds(seconds: float) -> int:
    """A time as ZMQ takes it; never rounded down to no time at all."""
    return math.ceil(seconds * 1000)


class Wake:
    """Wakes a thread that polls `descriptor`."""

    def __init__(self) -> None:
        self._sender, self._receiver = plain.socketpair()
        self._sender.setblocking(False)
        self._receiver.setblocking(False)

    @property
    def descriptor(self) -> int:
        """What to poll."""
        return self._receiver.fileno()

    def set(self) -> None:
        """Wake the thread, now or when it polls next."""
        # A full buffer wakes as well; a closed one has nobody left to wake.
        with suppress(OSError):
            self._sender.send(b"\0")

    def clear(self) -> None:
        """Forget the wakes so far."""
        with suppress(BlockingIOError):
            while self._receiver.recv(4096):
                pass

    def close(self) -> None:
        """Free the descriptors."""
        self._sender.close()
        self._receiver.close()
