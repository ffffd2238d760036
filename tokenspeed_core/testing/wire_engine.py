# SPDX-License-Identifier: MIT
"""An engine's side of the wire with no engine behind it: a test says what it sends, and when."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import zmq
import zmq.asyncio

from tokenspeed_core.client import ClientConfig, EngineClient, private_addresses
from tokenspeed_core.wire.codec import decode_message, encode_death
from tokenspeed_core.wire.control import pack_reply
from tokenspeed_core.wire.handshake import (
    HELLO,
    READY,
    ParallelSizes,
    pack_identity,
    pack_ready,
    pack_status,
    unpack_init,
)
from tokenspeed_core.wire.outputs import pack_own_batch
from tokenspeed_hookspecs import (
    AddRequest,
    ChunkDetails,
    ControlReply,
    EngineInfo,
    FinishKind,
    FinishReason,
    Load,
    Message,
    OutputBatch,
)

PATIENCE_S = 60.0
T = TypeVar("T")


class WireEngine:
    """One engine's sockets, for a client in the same event loop; close it at the end.

    `register` shakes hands; then `receive` gives the client's messages and the other verbs send.
    """

    def __init__(self, handshake: str, index: int = 0) -> None:
        self.index = index
        self._context = zmq.asyncio.Context()
        self._sockets: list[zmq.asyncio.Socket] = []
        # A test that fails may leave it open, and the collector would wait for its sockets.
        self._close = weakref.finalize(self, _close, self._context, self._sockets)
        self.handshake = self._dealer(handshake)
        self.input: zmq.asyncio.Socket | None = None
        self.output: zmq.asyncio.Socket | None = None
        self._totals: dict[str, int] = {}

    @property
    def info(self) -> EngineInfo:
        """What it says of itself."""
        return EngineInfo(
            index=self.index,
            model="scripted",
            max_model_len=4096,
            vocab_size=100_000,
            page_size=16,
            num_pages=512,
            dtype="bfloat16",
            version="test",
        )

    async def register(self, ready: bytes | None = None) -> None:
        """Shake hands and connect; `ready` stands in for the usual ready response."""
        await self.handshake.send(pack_status(HELLO))
        init = unpack_init(await _soon(self.handshake.recv()))
        await self.handshake.send(pack_status(READY))
        self.input = self.connect_input(init.input_address)
        await self.input.send(ready or pack_ready(self.info, ParallelSizes()))
        self.output = self._socket(zmq.PUSH)
        self.output.connect(init.output_address)

    def connect_input(self, address: str) -> zmq.asyncio.Socket:
        """A socket on the client's input, without a handshake."""
        return self._dealer(address)

    async def receive(self) -> Message:
        """The client's next message."""
        assert self.input is not None, "the engine is not registered"
        return decode_message(await _soon(self.input.recv_multipart()))

    async def receive_request(self) -> AddRequest:
        """The client's next message, which must be a request."""
        message = await self.receive()
        assert isinstance(message, AddRequest), f"expected a request, got {message!r}"
        return message

    async def send(
        self,
        rows: Mapping[str, Sequence[int]],
        *,
        finish: FinishKind | None = None,
        load: Load | None = None,
    ) -> None:
        """Send new tokens by request id, as one batch; with `finish`, every row's end."""
        outputs = OutputBatch()
        for row, (request_id, tokens) in enumerate(rows.items()):
            total = self._totals.get(request_id, 0) + len(tokens)
            self._totals[request_id] = total
            outputs.request_ids.append(request_id)
            outputs.token_ids += tokens
            outputs.counts.append(len(tokens))
            outputs.prompt_tokens.append(1)
            outputs.completion_tokens.append(total)
            outputs.cached_tokens.append(0)
            if finish is not None:
                outputs.details[row] = ChunkDetails(finish=FinishReason(finish))
                del self._totals[request_id]
        await self.send_frames(pack_own_batch(outputs, load, engine_index=self.index))

    def skip(self, request_id: str, count: int) -> None:
        """Count tokens of a request as sent, which were not."""
        self._totals[request_id] = self._totals.get(request_id, 0) + count

    async def reply(self, name: str, *, success: bool = True, message: str = "") -> None:
        """Answer a control request."""
        await self.send_frames(pack_reply(ControlReply(name, success, message), self.index))

    async def die(self) -> None:
        """Send the death notice."""
        await self.send_frames(*encode_death(self.index))

    async def send_frames(self, *frames: bytes) -> None:
        """Send a message on the output socket, whatever it is."""
        assert self.output is not None, "the engine is not registered"
        await self.output.send_multipart(frames)

    def close(self) -> None:
        """Hang up."""
        self._close()

    def _socket(self, kind: zmq.SocketType) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        return socket

    def _dealer(self, address: str) -> zmq.asyncio.Socket:
        socket = self._socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, pack_identity(self.index))
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.connect(address)
        return socket


def _close(context: zmq.asyncio.Context, sockets: Sequence[zmq.asyncio.Socket]) -> None:
    for socket in sockets:
        socket.close(linger=0)
    context.term()


async def _soon(waited: Awaitable[T]) -> T:
    return await asyncio.wait_for(waited, PATIENCE_S)


@asynccontextmanager
async def bound_client(count: int = 1, **config: Any) -> AsyncIterator[EngineClient]:
    """A client that listens for so many engines; `config` is the rest of its configuration."""
    with private_addresses() as addresses:
        settings = ClientConfig(addresses=addresses, num_engines=count, **config)
        async with EngineClient(settings) as client:
            client.bind()
            yield client


@asynccontextmanager
async def wire_engines(
    count: int = 1, **config: Any
) -> AsyncIterator[tuple[EngineClient, list[WireEngine]]]:
    """A client and so many engines that are registered with it."""
    async with bound_client(count, **config) as client:
        first = config.get("first_engine", 0)
        places = range(first, first + count)
        engines = [WireEngine(client.addresses.handshake, index) for index in places]
        try:
            await asyncio.gather(client.accept(), *(engine.register() for engine in engines))
            yield client, engines
        finally:
            for engine in engines:
                engine.close()
