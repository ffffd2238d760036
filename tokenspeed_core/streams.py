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
from tokenspeed_core.frontends.in_process import Delivery, InProcessFrontend
from tokenspeed_hookspecs import AddRequest


class TextStream(Iterator[str]):
    """Text of one request, piece by piece; `completion` has the whole once it has ended."""

    def __init__(
        self, frontend: InProcessFrontend, request: AddRequest, *, growing: Growing
    ) -> None:
        self._frontend = frontend
        self._growing = growing
        self._chunks: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._is_open = False  # a request that is refused here is not ours to abort
        frontend.add(request, self._chunks.put)
        self._is_open = True

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._growing.request_id

    def __next__(self) -> str:
        while self._is_open:
            delivery = self._chunks.get()
            self._is_open = not _is_last(delivery)
            if text := self._growing.take(delivery):
                return text
        self._growing.check()
        raise StopIteration

    def completion(self) -> Completion:
        """Read what is left and return the whole."""
        for _ in self:
            pass
        return self._growing.completion()

    def close(self) -> None:
        """Leave the stream; a request that still runs is aborted."""
        if self._is_open:
            self._is_open = False
            self._growing.leave()
            self._frontend.drop(self.request_id)

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
        self._frontend = frontend
        self._growing = growing
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[Delivery] = asyncio.Queue()
        self._is_open = False
        frontend.add(request, self._deliver)
        self._is_open = True

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._growing.request_id

    async def __anext__(self) -> str:
        while self._is_open:
            try:
                delivery = await self._chunks.get()
            except asyncio.CancelledError:
                self.close()
                raise
            self._is_open = not _is_last(delivery)
            if text := self._growing.take(delivery):
                return text
        self._growing.check()
        raise StopAsyncIteration

    async def completion(self) -> Completion:
        """Read what is left and return the whole."""
        async for _ in self:
            pass
        return self._growing.completion()

    def close(self) -> None:
        """Leave the stream; a request that still runs is aborted."""
        if self._is_open:
            self._is_open = False
            self._growing.leave()
            self._frontend.drop(self.request_id)

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
            self._frontend.drop(self.request_id)


def _is_last(delivery: Delivery) -> bool:
    return isinstance(delivery, EngineError) or delivery.finish is not None
