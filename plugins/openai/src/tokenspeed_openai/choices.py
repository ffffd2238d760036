# SPDX-License-Identifier: MIT
"""Reading what the engine makes of a request: each choice is an engine request of its own.

A choice ends with the engine's word, or where its text meets a stop string; then the engine is told
to go no further. Whoever leaves `pieces` early, by closing it or by being cancelled, aborts what
still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from attrs import define, evolve, frozen

from tokenspeed_hookspecs import (
    AddRequest,
    Chunk,
    ChunkStream,
    Detokenizer,
    EngineClient,
    FinishKind,
    FinishReason,
    RequestInUseError,
)
from tokenspeed_openai.deployment import Counters
from tokenspeed_openai.errors import ApiError, invalid
from tokenspeed_openai.responses import FinishWord


@define(eq=False)
class Piece:
    """What one delivery added to one choice; its last has a finish reason."""

    index: int
    text: str
    chunk: Chunk
    finish: FinishWord | None = None
    stop_reason: int | str | None = None


@frozen
class Choice:
    """One engine request to be, and the reader of its text."""

    index: int
    request: AddRequest
    reader: Detokenizer


class Run:
    """The choices of one HTTP request, on their way."""

    def __init__(self, choices: Sequence[Choice], counters: Counters) -> None:
        self._choices = choices
        self._counters = counters
        self._streams: list[ChunkStream] = []

    async def start(self, client: EngineClient, *, rank: int | None = None) -> None:
        """Send every choice to the engine, or none."""
        try:
            for choice in self._choices:
                self._streams.append(await client.generate(choice.request, rank=rank))
        except RequestInUseError as error:
            await self.close()
            raise invalid(str(error), "request_id") from error
        except ValueError as error:
            await self.close()
            raise invalid(str(error)) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Abort what still runs."""
        for stream in self._streams:
            await stream.aclose()

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Every choice's pieces as they come."""
        counters, width = self._counters, len(self._choices)
        counters.requests += 1
        counters.choices += width
        counters.open_choices += width
        reading = self._one(0) if width == 1 else self._several()
        try:
            async for piece in reading:
                counters.completion_tokens += len(piece.chunk.token_ids)
                if piece.finish is not None:
                    counters.open_choices -= 1
                    counters.finished[piece.finish] += 1
                    width -= 1
                yield piece
        finally:
            counters.open_choices -= width
            await reading.aclose()
            await self.close()

    async def _one(self, at: int) -> AsyncGenerator[Piece]:
        choice = self._choices[at]
        async for chunk in self._streams[at]:
            piece = _piece(choice, chunk)
            yield piece
            if piece.finish is not None:
                return

    async def _several(self) -> AsyncGenerator[Piece]:
        arrived: asyncio.Queue[Piece | asyncio.Task[None]] = asyncio.Queue()

        async def read(at: int) -> None:
            async for piece in self._one(at):
                arrived.put_nowait(piece)
            await self._streams[at].aclose()

        tasks = [asyncio.create_task(read(at)) for at in range(len(self._choices))]
        for task in tasks:
            task.add_done_callback(arrived.put_nowait)
        left = len(tasks)
        try:
            while left:
                item = await arrived.get()
                if isinstance(item, asyncio.Task):
                    item.result()
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _piece(choice: Choice, chunk: Chunk) -> Piece:
    reader = choice.reader
    finish = chunk.finish
    if finish is not None:
        return _last_piece(choice, chunk, finish=finish)
    text = reader.push(chunk.token_ids)
    if reader.matched is None:
        return Piece(choice.index, text, chunk)
    return Piece(choice.index, text, chunk, "stop", reader.matched)


def _last_piece(choice: Choice, chunk: Chunk, *, finish: FinishReason) -> Piece:
    if finish.kind is FinishKind.ABORT and finish.status_code is not None:
        raise ApiError(finish.status_code, finish.message or "The engine refused the request")
    if choice.request.sampling.max_new_tokens == 0:
        chunk = _without_output(chunk)
    reader, tokens = choice.reader, chunk.token_ids
    if finish.kind is FinishKind.STOP and tokens and tokens[-1] == finish.matched:
        tokens = tokens[:-1]  # the token that said stop is no part of the text
    text = reader.push(tokens) + reader.flush()
    if reader.matched is not None:
        return Piece(choice.index, text, chunk, "stop", reader.matched)
    reason = finish.message if finish.kind is FinishKind.ABORT else finish.matched
    return Piece(choice.index, text, chunk, finish.kind.value, reason)


def _without_output(chunk: Chunk) -> Chunk:
    """The engine always makes one token, also for a request that wants its prompt scored only."""
    details = chunk.details
    if details is not None:
        details = evolve(details, logprobs=None, alternatives=None)
    return Chunk([], chunk.prompt_tokens, 0, chunk.cached_tokens, details)
