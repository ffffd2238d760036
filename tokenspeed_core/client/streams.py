# SPDX-License-Identifier: MIT
"""A request's chunks on their way from the socket to whoever reads them.

At most one chunk waits in a mailbox: what comes while it is unread is merged into it. So a reader
that is slow, or gone, costs the tokens of its own request and holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tokenspeed_hookspecs import (
    Chunk,
    ChunkDetails,
    EngineUnavailableError,
    FinishKind,
    FinishReason,
)

T = TypeVar("T")


class Mailbox:
    """Where one request's chunks arrive; belongs to the event loop that made it."""

    __slots__ = ("_chunk", "_failure", "_totals", "_waiter", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._chunk: Chunk | None = None
        self._failure: EngineUnavailableError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._totals = (0, 0, 0)

    def follows(self, chunk: Chunk) -> bool:
        """Whether a chunk's total fits what came before; it does not where one was lost."""
        return self._totals[1] + len(chunk.token_ids) == chunk.completion_tokens

    def put(self, chunk: Chunk) -> None:
        """Take the next chunk, and with it the lists in it."""
        self._totals = (chunk.prompt_tokens, chunk.completion_tokens, chunk.cached_tokens)
        self._chunk = chunk if self._chunk is None else _merged(self._chunk, chunk)
        self._wake()

    def end(self, message: str) -> None:
        """End the stream as aborted; what waits in it is still read."""
        finish = FinishReason(FinishKind.ABORT, message=message)
        self.put(Chunk([], *self._totals, details=ChunkDetails(finish=finish)))

    def fail(self, failure: EngineUnavailableError) -> None:
        """End the stream with an error, after what waits in it."""
        self._failure = failure
        self._wake()

    async def take(self) -> Chunk:
        """The next chunk, or what failed; RuntimeError if another task waits for it already."""
        while self._chunk is None:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            await self._wait()
        chunk, self._chunk = self._chunk, None
        return chunk

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("expected one reader of a stream, got a second one while it waits")
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ClientStream:
    """The contract's ChunkStream. Leaving it in any way before its end aborts its request."""

    def __init__(self, request_id: str, mailbox: Mailbox, *, leave: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._mailbox = mailbox
        self._leave = leave
        self._is_over = False

    def __aiter__(self) -> ClientStream:
        return self

    async def __anext__(self) -> Chunk:
        if self._is_over:
            raise StopAsyncIteration
        try:
            chunk = await self._mailbox.take()
        except EngineUnavailableError:
            self._is_over = True
            raise
        except asyncio.CancelledError:
            self._drop()
            raise
        self._is_over = chunk.finish is not None
        return chunk

    async def aclose(self) -> None:
        """Leave the stream; a request that still runs is aborted."""
        self._drop()

    async def __aenter__(self) -> ClientStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._drop()

    def __del__(self) -> None:
        # The collector may run this on any thread, and after the event loop has gone.
        if not self._is_over and not self._mailbox.loop.is_closed():
            self._mailbox.loop.call_soon_threadsafe(self._leave, self.request_id)

    def _drop(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._leave(self.request_id)


def _merged(first: Chunk, then: Chunk) -> Chunk:
    """Two chunks as one. The lists of the first grow; nobody else holds them."""
    first.token_ids += then.token_ids
    first.prompt_tokens = then.prompt_tokens
    first.completion_tokens = then.completion_tokens
    first.cached_tokens = then.cached_tokens
    if first.details is None or then.details is None:
        first.details = first.details or then.details
        return first
    earlier, later = first.details, then.details
    first.details = ChunkDetails(
        later.finish,
        _joined(earlier.logprobs, later.logprobs),
        _joined(earlier.alternatives, later.alternatives),
        earlier.prompt or later.prompt,
        later.cached_by_tier or earlier.cached_by_tier,
    )
    return first


def _joined(first: list[T] | None, then: list[T] | None) -> list[T] | None:
    if first is None or then is None:
        return first if then is None else then
    first += then
    return first
