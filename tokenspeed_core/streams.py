# SPDX-License-Identifier: MIT
"""Streams of text from an engine, for plain loops and for asyncio.

Leaving a stream before its end, by `close`, by an exception or by cancelling the task that reads
it, aborts the request. A stream that raised EngineError raises it again when it is read on.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator

from tokenspeed_core.completion import Completion, Growing
from tokenspeed_core.errors import EngineError
from tokenspeed_core.frontends.in_process import Deliver, Delivery, InProcessFrontend
from tokenspeed_hookspecs import AddRequest


class _Reading:
    """One open request and what came of it so far; leaving it early aborts the request."""

    def __init__(self, frontend: InProcessFrontend, growing: Growing) -> None:
        self.growing = growing
        self.is_open = False
        self._frontend = frontend

    def begin(self, request: AddRequest, deliver: Deliver) -> None:
        """Send the request; one that is refused here is not ours to abort."""
        self._frontend.add(request, deliver)
        self.is_open = True

    def take(self, delivery: Delivery) -> str:
        """Add what was delivered; returns the text that became certain."""
        self.is_open = not _is_last(delivery)
        return self.growing.take(delivery)

    def close(self) -> None:
        """Leave; a request that still runs is aborted."""
        if self.is_open:
            self.is_open = False
            self.growing.leave()
            self.drop()

    def drop(self) -> None:
        """Abort the request: nobody reads it any more."""
        self._frontend.drop(self.growing.request_id)


class TextStream(Iterator[str]):
    """Text of one request, piece by piece; `completion` has the whole once it has ended."""

    def __init__(
        self, frontend: InProcessFrontend, request: AddRequest, *, growing: Growing
    ) -> None:
        self._reading = _Reading(frontend, growing)
        self._chunks: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._reading.begin(request, self._chunks.put)

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._reading.growing.request_id

    def __next__(self) -> str:
        while self._reading.is_open:
            if text := self._reading.take(self._chunks.get()):
                return text
        self._reading.growing.check()
        raise StopIteration

    def completion(self) -> Completion:
        """Read what is left and return the whole."""
        for _ in self:
            pass
        return self._reading.growing.completion()

    def close(self) -> None:
        """Leave the stream; a request that still runs is aborted."""
        self._reading.close()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncTextStream(AsyncIterator[str]):
    """The same for asyncio; made and read in one event loop."""

    def __init__(
        self, frontend: InProcessFrontend, request: AddRequest, *, growing: Growing
    ) -> None:
        self._reading = _Reading(frontend, growing)
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[Delivery] = asyncio.Queue()
        self._reading.begin(request, self._deliver)

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._reading.growing.request_id

    async def __anext__(self) -> str:
        while self._reading.is_open:
            try:
                delivery = await self._chunks.get()
            except asyncio.CancelledError:
                self.close()
                raise
            if text := self._reading.take(delivery):
                return text
        self._reading.growing.check()
        raise StopAsyncIteration

    async def completion(self) -> Completion:
        """Read what is left and return the whole."""
        async for _ in self:
            pass
        return self._reading.growing.completion()

    def close(self) -> None:
        """Leave the stream; a request that still runs is aborted."""
        self._reading.close()

    async def __aenter__(self) -> AsyncTextStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _deliver(self, delivery: Delivery) -> None:
        try:
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, delivery)
        except RuntimeError:  # the event loop is closed: nobody can read this any more
            self._reading.drop()


def _is_last(delivery: Delivery) -> bool:
    return isinstance(delivery, EngineError) or delivery.finish is not None
