# SPDX-License-Identifier: MIT
"""Engines in this process as a front end sees them, so that its tests need no second process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.selection import Chosen
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.engine import LocalEngine
from tokenspeed_core.errors import EngineError
from tokenspeed_core.frontends.in_process import Delivery, InProcessFrontend
from tokenspeed_core.wire.codec import encode_message
from tokenspeed_hookspecs import (
    AddRequest,
    Chunk,
    ControlReply,
    ControlRequest,
    EngineInfo,
    EngineUnavailableError,
    Load,
    RequestInUseError,
    Tokenizer,
)


class LocalStream:
    """One request's chunks; see `ChunkStream`."""

    def __init__(self, frontend: InProcessFrontend, request: AddRequest) -> None:
        self._frontend = frontend
        self._request_id = request.request_id
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[Delivery] = asyncio.Queue()
        self._is_open = True
        try:
            frontend.add(request, self._deliver)
        except EngineError as error:
            raise EngineUnavailableError(str(error)) from error
        except ValueError as error:
            raise RequestInUseError(str(error)) from error

    def __aiter__(self) -> LocalStream:
        return self

    async def __anext__(self) -> Chunk:
        if not self._is_open:
            raise StopAsyncIteration
        try:
            delivery = await self._chunks.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if isinstance(delivery, EngineError):
            self._is_open = False
            raise EngineUnavailableError(str(delivery)) from delivery
        self._is_open = delivery.finish is None
        return delivery

    async def aclose(self) -> None:
        """Leave the stream; a request that still runs is aborted."""
        if self._is_open:
            self._is_open = False
            self._frontend.drop(self._request_id)

    def _deliver(self, delivery: Delivery) -> None:
        try:
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, delivery)
        except RuntimeError:  # the event loop is closed: nobody can read this any more
            self._frontend.drop(self._request_id)


class LocalClient:
    """A started engine as an `EngineClient`; `info` is what it says of itself, `sent` every request
    it was sent."""

    def __init__(self, frontend: InProcessFrontend, info: EngineInfo) -> None:
        self.info = info
        self.sent: list[AddRequest] = []
        self._frontend = frontend

    @property
    def engines(self) -> Sequence[EngineInfo]:
        """The one engine."""
        return (self.info,)

    @property
    def loads(self) -> Sequence[Load | None]:
        """What it sent last."""
        return (self._frontend.load,)

    @property
    def failure(self) -> EngineUnavailableError | None:
        """Why it does not run."""
        failure = self._frontend.failure
        return None if failure is None else EngineUnavailableError(str(failure))

    async def generate(self, request: AddRequest, *, rank: int | None = None) -> LocalStream:
        """Send a request; see `EngineClient`."""
        if rank not in (None, 0):
            raise ValueError(f"there is no data-parallel rank {rank}; the ranks are 0 to 0")
        stream = LocalStream(self._frontend, request)
        self.sent.append(request)
        return stream

    async def abort(self, request_id: str) -> bool:
        """End a request."""
        return self._frontend.abort(request_id)

    async def control(
        self, request: ControlRequest, *, timeout_s: float | None = None
    ) -> Sequence[ControlReply]:
        """Ask for a control operation; what the wire would not carry is refused as there."""
        encode_message(request)
        try:
            reply = await asyncio.to_thread(self._frontend.control, request, timeout_s=timeout_s)
        except EngineError as error:
            raise EngineUnavailableError(str(error)) from error
        return (reply,)


def local_deployment(
    config: EngineConfig, tokenizer: Tokenizer | None, *, plugins: Sequence[Chosen] = ()
) -> tuple[LocalEngine, LocalClient]:
    """Compose an engine, to be started by its user, and the client that talks to it. The tokenizer
    is what the engine looks for stop strings with; prompts come as tokens."""
    frontend = InProcessFrontend()
    decode_text = tokenizer.decode if tokenizer is not None else None
    around = Surroundings(frontend=frontend, decode_text=decode_text)
    rank = build_rank(config, plugins, surroundings=around)
    model, scheduler = rank.data_plane.model, rank.config.scheduler
    info = EngineInfo(
        index=0,
        model=model.name,
        max_model_len=min(model.max_model_len, rank.scheduler.max_request_tokens),
        vocab_size=model.vocab_size,
        page_size=scheduler.page_size,
        num_pages=rank.scheduler.sizes.total_pages,
        dtype=model.dtype,
        version="0",
        features=tuple(name for each in rank.plugins for name in each.plugin.features),
    )
    return LocalEngine(rank, frontend, tokenizer=None), LocalClient(frontend, info)
