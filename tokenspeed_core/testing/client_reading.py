# SPDX-License-Identifier: MIT
"""Reading a client's streams to their end, without waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from attrs import define, field

from tokenspeed_hookspecs import (
    AddRequest,
    Chunk,
    ChunkStream,
    EngineClient,
    FinishReason,
    PromptLogprobs,
)

PATIENCE_S = 60.0
T = TypeVar("T")


@define
class Answer:
    """Everything a request was sent."""

    chunks: list[Chunk] = field(factory=list)

    @property
    def tokens(self) -> list[int]:
        """All tokens, in order."""
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def finish(self) -> FinishReason | None:
        """The request's end, None where it was not read that far."""
        return self.chunks[-1].finish if self.chunks else None

    @property
    def kind(self) -> str | None:
        """How it ended, in the words of the wire."""
        return None if self.finish is None else self.finish.kind.value

    @property
    def prompt_scores(self) -> list[PromptLogprobs]:
        """The prompt's logprobs, one entry for each chunk that had some."""
        details = [chunk.details for chunk in self.chunks if chunk.details is not None]
        return [each.prompt for each in details if each.prompt is not None]


async def soon(waited: Awaitable[T], *, limit_s: float = PATIENCE_S) -> T:
    """What is waited for; TimeoutError if it does not come within the limit."""
    return await asyncio.wait_for(waited, limit_s)


class Reading:
    """A stream that is read in the background; `answer` grows."""

    def __init__(self, stream: ChunkStream) -> None:
        self.answer = Answer()
        self._has_chunk = asyncio.Event()
        self._task = asyncio.create_task(self._read(stream))

    async def first(self) -> Chunk:
        """The first chunk; TimeoutError if it does not come within ten seconds."""
        await soon(self._has_chunk.wait())
        return self.answer.chunks[0]

    async def end(self) -> Answer:
        """Wait for the end of the stream, and return everything."""
        await self._task
        return self.answer

    async def _read(self, stream: ChunkStream) -> None:
        while (chunk := await soon(anext(stream, None))) is not None:
            self.answer.chunks.append(chunk)
            self._has_chunk.set()


async def read(stream: ChunkStream) -> Answer:
    """A stream to its end; TimeoutError if a chunk takes longer than ten seconds."""
    return await Reading(stream).end()


async def ask(client: EngineClient, request: AddRequest, *, rank: int | None = None) -> Answer:
    """Send a request and read it to its end."""
    return await read(await client.generate(request, rank=rank))
