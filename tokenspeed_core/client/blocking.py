# SPDX-License-Identifier: MIT
"""The same client for scripts: plain calls, and behind them an event loop on its own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import TypeVar

from tokenspeed_core.client.addresses import Addresses
from tokenspeed_core.client.config import ClientConfig
from tokenspeed_core.client.engine_client import EngineClient
from tokenspeed_core.client.streams import ClientStream
from tokenspeed_hookspecs import (
    AddRequest,
    Chunk,
    ControlReply,
    ControlRequest,
    EngineInfo,
    EngineUnavailableError,
    Load,
)

PATIENCE_S = 1.0
T = TypeVar("T")


class _EventLoop:
    """An event loop on a thread; `run` waits for a coroutine on it."""

    def __init__(self) -> None:
        self.is_open = True
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tokenspeed-client", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """The coroutine's result. Leaving the wait, as by Ctrl-C, cancels it."""
        with self._lock:
            if not self.is_open:
                work.close()
                raise RuntimeError("the client was closed; make another one")
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def stop(self) -> None:
        """End the thread, after everything that waits for it."""
        with self._lock:
            was_open, self.is_open = self.is_open, False
        if was_open:
            asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    # With the client closed they end by themselves, each with its own error.
    late = (await asyncio.wait(others, timeout=PATIENCE_S))[1] if others else set()
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)


class BlockingChunkStream(Iterator[Chunk]):
    """One request's chunks, for a plain loop. Leaving it before its end aborts the request."""

    def __init__(self, stream: ClientStream, loop: _EventLoop) -> None:
        self._stream = stream
        self._loop = loop

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._stream.request_id

    def __next__(self) -> Chunk:
        chunk = self._loop.run(_next_of(self._stream))
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Leave the stream; a request that still runs is aborted."""
        if self._loop.is_open:
            self._loop.run(self._stream.aclose())

    def __enter__(self) -> BlockingChunkStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class BlockingEngineClient:
    """EngineClient without asyncio; `close` it, or use it as a context manager. Calls may come from
    several threads."""

    def __init__(self, config: ClientConfig, *, log: logging.Logger | None = None) -> None:
        self._client = EngineClient(config, log=log)
        self._loop = _EventLoop()

    @property
    def addresses(self) -> Addresses:
        """Where the client listens."""
        return self._client.addresses

    def bind(self) -> Addresses:
        """Listen, at first or again after a failure; OSError if an address is taken."""
        return self._loop.run(_bound(self._client))

    def accept(self) -> Sequence[EngineInfo]:
        """Wait until every engine has registered; EngineUnavailableError if one does not in
        time."""
        return self._loop.run(self._client.accept())

    def close(self) -> None:
        """Close the sockets and the thread; streams that still run end with an error."""
        if self._loop.is_open:
            self._loop.run(self._client.aclose())
            self._loop.stop()

    def __enter__(self) -> BlockingEngineClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def engines(self) -> Sequence[EngineInfo]:
        """The engines in index order; empty before they registered."""
        return self._client.engines

    @property
    def loads(self) -> Sequence[Load | None]:
        """Each engine's last reported load; None before its first."""
        return self._client.loads

    @property
    def failure(self) -> EngineUnavailableError | None:
        """Why no request can run now, or None while the engines live."""
        return self._client.failure

    @property
    def num_dropped(self) -> int:
        """Messages that came in and could not be read."""
        return self._client.num_dropped

    def generate(self, request: AddRequest, *, rank: int | None = None) -> BlockingChunkStream:
        """Send a request to one engine; see `EngineClient.generate`."""
        stream = self._loop.run(self._client.generate(request, rank=rank))
        return BlockingChunkStream(stream, self._loop)

    def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with finish kind abort. False: it is not in flight."""
        return self._loop.run(self._client.abort(request_id))

    def control(
        self, request: ControlRequest, *, timeout_s: float | None = None
    ) -> Sequence[ControlReply]:
        """Send a control request to every engine; one reply each, in engine order."""
        return self._loop.run(self._client.control(request, timeout_s=timeout_s))


async def _bound(client: EngineClient) -> Addresses:
    return client.bind()


async def _next_of(stream: ClientStream) -> Chunk | None:
    # A StopAsyncIteration cannot leave a future.
    return await anext(stream, None)
