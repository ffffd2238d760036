# SPDX-License-Identifier: MIT
"""The two data sockets of an engine that a front end has accepted."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from tokenspeed_core.wire.codec import encode_death
from tokenspeed_core.wire.handshake import Init, unpack_identity
from tokenspeed_core.wire.outputs import pack_batch, pack_own_batch
from tokenspeed_core.wire.packing import MAX_CONTROL_BYTES, WireError
from tokenspeed_core.wire.sockets import Wake, WatchedSocket, milliseconds
from tokenspeed_hookspecs import Load, OutputBatch

# A gateway that is so many batches behind has stopped reading.
SEND_HIGH_WATER = 256


class Link:
    """Messages of one front end in, frames out; a frame that is not taken at once is kept.

    WireError: an address of INIT is none.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        init: Init,
        *,
        identity: bytes,
        registration: bytes,
    ) -> None:
        self.is_own_client = init.is_own_client
        self.engine_index = unpack_identity(identity)
        self.unsent: Sequence[bytes] | None = None
        self._input = WatchedSocket(
            context,
            zmq.DEALER,
            address=init.input_address,
            options={zmq.ROUTING_ID: identity, zmq.MAXMSGSIZE: MAX_CONTROL_BYTES},
        )
        try:
            self._output = WatchedSocket(
                context,
                zmq.PUSH,
                address=init.output_address,
                options={zmq.SNDHWM: SEND_HIGH_WATER},
            )
        except WireError:
            self._input.close()
            raise
        self._poller = zmq.Poller()
        self._polled: dict[zmq.Socket[bytes] | int, int] = {}
        for watched in (self._input, self._output):
            self._poller.register(watched.monitor, zmq.POLLIN)
        self._input.send([registration])

    @property
    def is_lost(self) -> bool:
        """Whether a connection dropped; it does not come back."""
        return self._input.is_lost or self._output.is_lost

    @property
    def is_connected(self) -> bool:
        """Whether both connections stand."""
        return self._input.is_connected and self._output.is_connected

    def wait(self, wake: Wake, timeout_s: float, *, is_reading: bool) -> None:
        """Wait for something to do: a message, room for the unsent frame, a change, a wake."""
        self._poll_for(self._input.socket, zmq.POLLIN if is_reading else 0)
        self._poll_for(self._output.socket, zmq.POLLOUT if self.unsent is not None else 0)
        self._poll_for(wake.descriptor, zmq.POLLIN)
        found = {which for which, _ in self._poller.poll(milliseconds(timeout_s))}
        for watched in (self._input, self._output):
            if watched.monitor in found:
                watched.look()
        if wake.descriptor in found:
            wake.clear()

    def _poll_for(self, source: zmq.Socket[bytes] | int, events: int) -> None:
        # Registering costs more than finding that it was done.
        if self._polled.get(source) != events:
            self._poller.register(source, events)
            self._polled[source] = events

    def receive(self) -> list[bytes] | None:
        """A message that is there, or None."""
        return self._input.receive()

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message after the unsent one, which must be gone."""
        assert self.unsent is None, "a message is still unsent"
        if not self._output.send(frames):
            self.unsent = frames

    def send_unsent(self) -> bool:
        """Try the unsent message again; whether none is left."""
        if self.unsent is not None and self._output.send(self.unsent):
            self.unsent = None
        return self.unsent is None

    def pack(self, outputs: OutputBatch, load: Load | None) -> list[bytes]:
        """A batch as this front end reads it."""
        pack = pack_own_batch if self.is_own_client else pack_batch
        return [pack(outputs, load, engine_index=self.engine_index)]

    def say_death(self) -> None:
        """Tell the front end that the engine ends, if it is there and takes the message at once."""
        if self._output.is_connected and not self.is_lost:
            self._output.send(encode_death(self.engine_index if self.is_own_client else None))

    def close(self, linger_s: float = 0.0) -> None:
        """Close both sockets; what was sent has so long to leave."""
        self._input.close()
        self._output.close(linger_s)
