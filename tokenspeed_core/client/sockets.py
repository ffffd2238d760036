# SPDX-License-Identifier: MIT
"""The client's three bound sockets, and the one that tells of engines that hang up."""

from __future__ import annotations

import zmq
from attrs import frozen

from tokenspeed_core.client.addresses import Addresses
from tokenspeed_core.keyed_address import ListenKey, shown

MAX_HANDSHAKE_BYTES = 1 << 20
MAX_OUTPUT_BYTES = 1 << 30


@frozen(eq=False)
class Sockets:
    """Bound sockets and the addresses they have; `disconnects` gets a message a lost peer."""

    context: zmq.Context[zmq.Socket[bytes]]
    addresses: Addresses
    handshake: zmq.Socket[bytes]
    input: zmq.Socket[bytes]
    output: zmq.Socket[bytes]
    disconnects: zmq.Socket[bytes]

    def send(self, message: list[bytes]) -> None:
        """Send to one engine, all or nothing; zmq.Again if its queue is full, another ZMQError if
        it is not connected."""
        self.input.send_multipart(message, zmq.DONTWAIT)

    def greet(self, message: list[bytes]) -> None:
        """Answer on the handshake socket; a caller that is gone is not missed."""
        self.handshake.send_multipart(message, zmq.DONTWAIT)

    def close(self) -> None:
        """Close all of them. When this returns the addresses are free, and so bound anew the old
        sockets do not take the new ones' files along."""
        self.input.disable_monitor()
        self.context.destroy(linger=0)


def open_sockets(addresses: Addresses, *, send_queue: int) -> Sockets:
    """Bind; OSError names an address that cannot be bound. `send_queue` is in messages an
    engine."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.linger = 0
    try:
        handshake = context.socket(zmq.ROUTER)
        handshake.setsockopt(zmq.MAXMSGSIZE, MAX_HANDSHAKE_BYTES)
        # An engine that is started again may call before its predecessor's end is noticed.
        handshake.setsockopt(zmq.ROUTER_HANDOVER, 1)
        inputs = context.socket(zmq.ROUTER)
        inputs.setsockopt(zmq.MAXMSGSIZE, MAX_HANDSHAKE_BYTES)
        inputs.setsockopt(zmq.ROUTER_MANDATORY, 1)
        inputs.setsockopt(zmq.SNDHWM, send_queue)
        output = context.socket(zmq.PULL)
        output.setsockopt(zmq.MAXMSGSIZE, MAX_OUTPUT_BYTES)
        key = addresses.key
        bound = Addresses(
            _bind(handshake, addresses.handshake, key=key),
            _bind(inputs, addresses.input, key=key),
            _bind(output, addresses.output, key=key),
            key=key,
        )
        disconnects = inputs.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    except BaseException:
        context.destroy(linger=0)
        raise
    return Sockets(context, bound, handshake, inputs, output, disconnects)


def _bind(socket: zmq.Socket[bytes], address: str, *, key: ListenKey | None) -> str:
    place = shown(address)
    if key is not None:
        key.guard(socket)
    try:
        socket.bind(place)
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"cannot listen at {place}: {error.strerror}") from error
    if place.startswith("tcp"):
        place = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return place if key is None else key.told(place)
