# SPDX-License-Identifier: MIT
"""Addresses that only those who were told them can use.

A tcp address may carry a key, as `tcp://HOST:PORT#KEY`. Whoever listens there speaks CURVE with
that public key, which never goes over the network: a connection can only be made, and what goes
over it only be read, by who has the whole address.
"""

from __future__ import annotations

import zmq
from attrs import field, frozen


@frozen
class ListenKey:
    """A key pair to listen with."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> ListenKey:
        """A pair nobody else has."""
        return cls(*zmq.curve_keypair())

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Have a socket, not bound yet, talk to nobody who does not know the public key."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)

    def told(self, address: str) -> str:
        """An address with the public key."""
        return f"{address}#{self.public.decode()}"


def shown(address: str) -> str:
    """An address for logs and errors, without its key."""
    return address.partition("#")[0]


def connect(socket: zmq.Socket[bytes], address: str) -> None:
    """Connect to an address, with its key if it carries one. ZMQError: it is no address."""
    _, _, key = address.partition("#")
    if key:
        public, secret = zmq.curve_keypair()
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
    socket.connect(shown(address))
