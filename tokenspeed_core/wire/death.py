# SPDX-License-Identifier: MIT
"""The death notice of an engine that could not send it itself, by whoever watches its process."""

from __future__ import annotations

import time

import zmq

from tokenspeed_core.wire.codec import encode_death
from tokenspeed_core.wire.sockets import WatchedSocket, milliseconds


def announce_death(
    output_address: str, *, engine_index: int | None = None, within_s: float = 1.0
) -> bool:
    """Tell the front end at this output address that its engine is dead; whether it listened.

    The notice is sent to a front end that is there, and never left behind for the next one.
    `engine_index` is for our own client only.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = WatchedSocket(context, zmq.PUSH, address=output_address, options={})
    try:
        if _connects(socket, time.monotonic() + within_s):
            return socket.send(encode_death(engine_index))
        return False
    finally:
        socket.close(within_s)
        context.term()


def _connects(socket: WatchedSocket, deadline: float) -> bool:
    while not socket.is_connected and not socket.is_lost:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        socket.monitor.poll(milliseconds(left_s))
        socket.look()
    return not socket.is_lost
