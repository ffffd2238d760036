# SPDX-License-Identifier: MIT
"""The other end of the wire, frame by frame: what a front end binds, and what it says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import zmq

from tokenspeed_core.wire.codec import (
    EngineDeath,
    Output,
    decode_output,
    encode_message,
)
from tokenspeed_core.wire.handshake import (
    HELLO,
    READY,
    Init,
    pack_identity,
    pack_init,
    unpack_identity,
    unpack_ready,
    unpack_status,
)
from tokenspeed_core.wire.outputs import ReceivedBatch
from tokenspeed_core.wire.sockets import milliseconds
from tokenspeed_hookspecs import Chunk, EngineInfo, Message

PATIENCE_S = 60.0


class WirePeer:
    """A front end in a folder whose path must be short; `is_own_client` or else a gateway.

    `name` sets its data addresses apart from another's, which an engine may still be connecting to:
    it would be heard there without a handshake. Everything waits at most a minute and raises
    TimeoutError then. Use it in a `with`.
    """

    def __init__(self, folder: Path, *, is_own_client: bool = True, name: str = "") -> None:
        self.handshake_address = f"ipc://{folder}/h"
        self.init = Init(f"ipc://{folder}/i{name}", f"ipc://{folder}/o{name}", is_own_client)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.handshake = self._bound(zmq.ROUTER, self.handshake_address)
        self.input = self._bound(zmq.ROUTER, self.init.input_address)
        self.output = self._bound(zmq.PULL, self.init.output_address)

    def accept(self, count: int = 1) -> list[EngineInfo]:
        """Shake hands with so many engines, then stop listening for more; their infos by index."""
        found = [self.greet() for _ in range(count)]
        for identity in found:
            self.handshake.send_multipart([identity, pack_init(self.init)])
        for _ in range(count):
            self.expect(READY)
        infos = [self.registration() for _ in range(count)]
        self.handshake.close(0)
        return sorted(infos, key=lambda info: info.index)

    def greet(self) -> bytes:
        """Wait for a HELLO; whose identity it is."""
        return self.expect(HELLO)

    def expect(self, status: str) -> bytes:
        """Wait for a message of the handshake with this status; its identity."""
        identity, payload = self._receive(self.handshake)
        assert unpack_status(payload) == status
        return identity

    def registration(self) -> EngineInfo:
        """Wait for an engine's ready response."""
        identity, payload = self._receive(self.input)
        return unpack_ready(payload, unpack_identity(identity))

    def send(self, *messages: Message, to: int = 0) -> None:
        """Send messages to an engine."""
        for message in messages:
            self.send_frames(encode_message(message), to=to)

    def send_frames(self, frames: Sequence[bytes], *, to: int = 0) -> None:
        """Send any frames to an engine."""
        self.input.send_multipart([pack_identity(to), *frames])

    def next_output(self, wait_s: float = PATIENCE_S) -> Output:
        """The next message from any engine, empty batches left out."""
        while True:
            output = decode_output(self._receive(self.output, wait_s))
            if not isinstance(output, ReceivedBatch) or output.chunks:
                return output

    def next_frames(self, wait_s: float = PATIENCE_S) -> list[bytes]:
        """The next message from any engine, whatever it is."""
        return self._receive(self.output, wait_s)

    def chunks(self) -> Iterable[tuple[str, Chunk]]:
        """Every chunk from now on; stops at an engine's death."""
        outputs = (self.next_output() for _ in itertools.count())
        for output in itertools.takewhile(lambda each: not isinstance(each, EngineDeath), outputs):
            assert isinstance(output, ReceivedBatch), output
            yield from output.chunks

    def finish(self, request_id: str) -> list[Chunk]:
        """Wait for a request's end; its chunks from now on, whatever other requests say."""
        found = []
        for each, chunk in self.chunks():
            if each == request_id:
                found.append(chunk)
                if chunk.finish is not None:
                    break
        return found

    def close(self) -> None:
        """Close every socket at once, as a process that ends does."""
        self._context.destroy(0)

    def __enter__(self) -> WirePeer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _bound(self, kind: zmq.SocketType, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            # Otherwise an engine that comes back before its old connection is seen to end is mute.
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.bind(address)
        return socket

    def _receive(self, socket: zmq.Socket[bytes], wait_s: float = PATIENCE_S) -> list[bytes]:
        if not socket.poll(milliseconds(wait_s)):
            raise TimeoutError(f"no message within {wait_s} s")
        return socket.recv_multipart()
