# SPDX-License-Identifier: MIT
"""Reading a ZMQ socket from an event loop, by the socket's own descriptor.

A message takes one callback on its way, and no future and no task as with `zmq.asyncio`, which made
a round trip a tenth to a third longer. The descriptor only tells that something changed, so a read
goes on until there is nothing left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

# Others of the event loop get their turn after so many messages.
MESSAGES_A_TURN = 64


class SocketReader:
    """Calls `take` with the frames of each message, between `start` and `stop`."""

    def __init__(self, socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._take = take
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Read from the running event loop on."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._read)
        # What came before changes nothing any more.
        self._loop.call_soon(self._read)

    def stop(self) -> None:
        """Read no more; the socket must still be open."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._socket.fileno())

    def _read(self) -> None:
        for _ in range(MESSAGES_A_TURN):
            if self._loop is None:
                return
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                self._take(frames)
            except BaseException:
                self._again()  # the descriptor will not tell of what is left
                raise
        self._again()

    def _again(self) -> None:
        if self._loop is not None:
            self._loop.call_soon(self._read)
