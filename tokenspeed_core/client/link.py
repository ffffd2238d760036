# SPDX-License-Identifier: MIT
"""One connection to the engines of a deployment, from the binding of its sockets to its end.

Engines live and die together here: what ends one ends the link, and every stream with the same
error. A link that has ended is not used again; a restarted engine meets a new one.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Sequence

from tokenspeed_core.client.config import ClientConfig
from tokenspeed_core.client.control_queue import ControlQueue
from tokenspeed_core.client.handshake import Handshake
from tokenspeed_core.client.in_flight import InFlight
from tokenspeed_core.client.outgoing import Outgoing
from tokenspeed_core.client.routing import Router
from tokenspeed_core.client.silence import SilenceWatch
from tokenspeed_core.client.socket_reader import SocketReader
from tokenspeed_core.client.sockets import Sockets
from tokenspeed_core.client.streams import ClientStream
from tokenspeed_core.wire.codec import EngineDeath, decode_output, encode_message
from tokenspeed_core.wire.dropped import DroppedMessages
from tokenspeed_core.wire.handshake import Init, pack_identity, pack_init
from tokenspeed_core.wire.outputs import ReceivedBatch
from tokenspeed_core.wire.packing import WireError
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    ControlReply,
    ControlRequest,
    EngineInfo,
    EngineUnavailableError,
    Load,
)

# An engine that hung up may have said something before, which comes by another socket.
HANG_UP_GRACE_S = 0.5
NOT_REGISTERED = "its engines have not registered yet; start them and wait for accept()"


class Link:
    """Sockets, requests in flight and control requests of one connection."""

    def __init__(
        self, config: ClientConfig, sockets: Sockets, *, router: Router, log: logging.Logger
    ) -> None:
        num_engines = config.num_engines
        self.failure: EngineUnavailableError | None = EngineUnavailableError(NOT_REGISTERED)
        self.engines: Sequence[EngineInfo] = ()
        self.has_ended = False
        self.loads: list[Load | None] = [None] * num_engines
        self.dropped = DroppedMessages(log, time.monotonic, source="engines")
        self._config = config
        self._sockets = sockets
        # Forgotten instead of closed, the sockets would hang the collector: it may end their
        # context first.
        self._close_sockets = weakref.finalize(self, sockets.close)
        self._router = router
        self._log = log
        self._in_flight = InFlight.on(num_engines)
        self._ways = [self._way(position) for position in range(num_engines)]
        self._controls = ControlQueue(num_engines, self._send_to_all)
        self._silence = SilenceWatch(
            config.silence_limit_s, num_engines, self._num_owed, self._engine_failed
        )
        self._readers: list[SocketReader] = []
        self._registered: asyncio.Future[Sequence[EngineInfo]] | None = None

    # --- its life --------------------------------------------------------------------------------

    async def accept(self) -> Sequence[EngineInfo]:
        """Wait for every engine; EngineUnavailableError, and the link has ended, if one does not
        come in time or is none we can serve with."""
        if self.has_ended or self._registered is not None:
            raise RuntimeError("accept() is called once after each bind()")
        limit_s = self._config.handshake_timeout_s
        self._registered = asyncio.get_running_loop().create_future()
        handshake = self._handshake(self._registered)
        calls = SocketReader(self._sockets.handshake, handshake.take_status)
        registrations = SocketReader(self._sockets.input, handshake.take_registration)
        self._start(calls, registrations, SocketReader(self._sockets.output, self._take_output))
        try:
            async with asyncio.timeout(limit_s):
                self.engines = await self._registered
        except TimeoutError:
            late = handshake.missing()
            raise self.end(f"not every engine registered within {limit_s} s: {late}") from None
        except WireError as error:
            raise self.end(f"an engine cannot be served with: {error}") from error
        except asyncio.CancelledError:
            self.end("accept() was cancelled before every engine had registered")
            raise
        self._serve(calls, registrations)
        return self.engines

    def end(self, reason: str) -> EngineUnavailableError:
        """Close the sockets and end every stream and control request, all with one error."""
        if self.has_ended and self.failure is not None:
            return self.failure
        self.has_ended = True
        self.failure = failure = EngineUnavailableError(reason)
        self._silence.stop()
        for reader in self._readers:
            reader.stop()
        for way in self._ways:
            way.close()
        self._close_sockets()
        self._in_flight.fail(failure)
        self._controls.fail(failure)
        if self._registered is not None and not self._registered.done():
            self._registered.set_exception(failure)
        return failure

    def check(self) -> None:
        """Raise what keeps requests from running, if something does."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    # --- requests --------------------------------------------------------------------------------

    async def generate(self, request: AddRequest, rank: int | None) -> ClientStream:
        """Register, route, send; what fails undoes what came before."""
        self.check()
        request_id = request.request_id
        flight = self._in_flight.register(request_id)
        left: asyncio.Future[None] | None = None
        try:
            position = self._position(rank)
            frames = encode_message(request)
            self._in_flight.route(flight, position)
            left = self._ways[position].send(frames)
            if left is not None:
                await left
            self.check()
        except BaseException:
            if left is not None and left.done() and not left.cancelled():
                self.leave(request_id)
            self._in_flight.undo(request_id)
            raise
        return ClientStream(request_id, flight.mailbox, leave=self.leave)

    def leave(self, request_id: str) -> None:
        """Forget a request nobody reads, and abort it."""
        self._abandon(request_id)

    def abort(self, request_id: str) -> bool:
        """End a request's stream and abort it; False if it is not in flight."""
        return self._abandon(request_id, "aborted by the caller")

    async def control(
        self, request: ControlRequest, timeout_s: float | None
    ) -> Sequence[ControlReply]:
        """Ask every engine; their replies in engine order."""
        self.check()
        frames = encode_message(request)
        return await self._controls.ask(request.name, frames, timeout_s=timeout_s)

    def _abandon(self, request_id: str, message: str | None = None) -> bool:
        flight = self._in_flight.leave(request_id)
        if flight is None:
            return False
        if message is not None:
            flight.mailbox.end(message)
        if flight.position is not None:
            self._ways[flight.position].send(encode_message(AbortRequests((request_id,))))
        return True

    def _position(self, rank: int | None) -> int:
        if rank is None:
            return self._router.pick(self._in_flight.counts, self.loads)
        if not 0 <= rank < len(self._ways):
            raise ValueError(
                f"expected a data-parallel rank in [0, {len(self._ways)}), got {rank}; there are "
                "as many as engines"
            )
        return rank

    # --- what engines send -----------------------------------------------------------------------

    def _take_output(self, frames: list[bytes]) -> None:
        try:
            output = decode_output(frames)
        except WireError as error:
            self.dropped.note(frames, error)
            return
        if isinstance(output, EngineDeath):
            index = output.engine_index
            self.end(f"{'an engine' if index is None else f'engine {index}'} has ended")
            return
        position = output.engine_index - self._config.first_engine
        if not 0 <= position < len(self._ways):
            self.dropped.note(frames, f"there is no engine {output.engine_index}")
            return
        self._silence.heard(position)
        if isinstance(output, ReceivedBatch):
            self._take_batch(output, position)
        elif not self._controls.take(position, output.reply):
            self.dropped.note(frames, f"nobody asked for a reply to {output.reply.name!r}")

    def _take_batch(self, output: ReceivedBatch, position: int) -> None:
        if output.load is not None:
            self.loads[position] = output.load
        for request_id in self._in_flight.deliver(output.chunks):
            self._log.error("tokens of request %r were lost; it is aborted", request_id)
            self._abandon(request_id, "some of its tokens were lost on their way from the engine")

    def _take_late_input(self, frames: list[bytes]) -> None:
        self.dropped.note(frames, "every engine is registered already")

    def _take_disconnect(self, frames: list[bytes]) -> None:
        asyncio.get_running_loop().call_later(HANG_UP_GRACE_S, self._probe)

    def _probe(self) -> None:
        """See which engine hung up: an abort of nothing has no way to go there."""
        for way in self._ways:
            if not self.has_ended:
                way.send(encode_message(AbortRequests(())))

    # --- the engines' side of the link -----------------------------------------------------------

    def _handshake(self, registered: asyncio.Future[Sequence[EngineInfo]]) -> Handshake:
        bound = self._sockets.addresses
        return Handshake(
            self._config.engine_indices,
            pack_init(Init(bound.input, bound.output, is_own_client=True)),
            self._sockets.greet,
            self.dropped.note,
            registered,
        )

    def _serve(self, calls: SocketReader, registrations: SocketReader) -> None:
        for reader in (calls, registrations):
            reader.stop()
            self._readers.remove(reader)
        # As with the gateway: nobody can call until this link has ended and another is bound.
        self._sockets.handshake.close(linger=0)
        self.failure = None
        self._silence.start()
        self._start(
            SocketReader(self._sockets.input, self._take_late_input),
            SocketReader(self._sockets.disconnects, self._take_disconnect),
        )

    def _start(self, *readers: SocketReader) -> None:
        for reader in readers:
            self._readers.append(reader)
            reader.start()

    def _way(self, position: int) -> Outgoing:
        return Outgoing(
            pack_identity(self._config.first_engine + position),
            self._sockets.send,
            self._config.send_timeout_s,
            lambda reason: self._engine_failed(position, reason),
        )

    def _send_to_all(self, frames: list[bytes]) -> None:
        for way in self._ways:
            if not self.has_ended:
                way.send(frames)

    def _num_owed(self, position: int) -> int:
        # Engines give signs of life for requests only; a control request has a limit of its own.
        return self._in_flight.counts[position]

    def _engine_failed(self, position: int, reason: str) -> None:
        self.end(f"engine {self._config.first_engine + position} counts as dead: {reason}")
