# SPDX-License-Identifier: MIT
"""Streams of text from an engine, for plain loops and for asyncio.

Leaving a stream before its end, by `close`, by an exception or by cancelling the task that reads
it, aborts the request.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator

from tokenspeed_core.completion import Completion, Growing
from tokenspeed_core.errors import EngineError
from tokenspeed_core.frontends.in_process import Chunk, Delivery, InProcessFrontend
from tokenspeed_hookspecs import AddRequest


class TextStream(Iterator[str]):
    """Text deltas of one request; `completion` is there once the stream has ended."""

    def __init__(
        self, frontend: InProcessFrontend, request: AddRequest, *, growing: Growing
    ) -> None:
        self._frontend = frontend
        self._growing = growing
        self._chunks: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._is_over = False
        frontend.add(request, self._chunks.put)

    @property
    def request_id(self) -> str:
        """The id to abort it by."""
        return self._growing.request_id

    def __next__(self) -> str:
        if self._is_over:
            raise StopIteration
        chunk = _opened(self._chunks.get())
        delta = self._growing.take(chunk)
        self._is_over = chunk.finish is not None
        return delta

    def completion(self) -> Completion:
        """Read what is left and return the whole."""
        for _ in self:
            pass
        return self._growing.completion()

    def close(self) -> None:
        """Leave the stream; a request that still runs is aborted."""
        if not self._is_over:
            self._is_over = True
            self._frontend.drop(self.request_id)

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


async def read_async(
    frontend: InProcessFrontend, request: AddRequest, *, growing: Growing
) -> AsyncIterator[str]:
    """Text deltas of one request, in an event loop."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[Delivery] = asyncio.Queue()

    def deliver(chunk: Delivery) -> None:
        loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    frontend.add(request, deliver)
    try:
        while growing.finish is None:
            yield growing.take(_opened(await chunks.get()))
    finally:
        if growing.finish is None:
            frontend.drop(request.request_id)


def _opened(delivery: Delivery) -> Chunk:
    if isinstance(delivery, EngineError):
        raise delivery
    return delivery
