# SPDX-License-Identifier: MIT
"""Streams over the wire, with engines that do what a test says."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tokenspeed_core.testing import request
from tokenspeed_core.testing.wire_engine import wire_engines
from tokenspeed_hookspecs import (
    AbortRequests,
    FinishKind,
    RequestInUseError,
)

pytestmark = pytest.mark.anyio


async def test_a_stream_has_its_requests_chunks_in_order() -> None:
    """Chunks come as they were sent, and nothing after the one that finishes."""
    async with wire_engines() as (client, (engine,)):
        stream = await client.generate(request("r1", 3, budget=2))
        assert (await engine.receive_request()).prompt_ids == [1, 2, 3]
        await engine.send({"r1": [7]})
        first = await anext(stream)
        await engine.send({"r1": [8]}, finish=FinishKind.LENGTH)
        rest = [chunk async for chunk in stream]
    assert first.token_ids == [7]
    assert [(chunk.token_ids, chunk.completion_tokens) for chunk in rest] == [([8], 2)]
    assert rest[-1].finish is not None


async def test_what_nobody_reads_is_merged() -> None:
    """A reader that comes late gets everything in one chunk, with the last totals."""
    async with wire_engines() as (client, (engine,)):
        slow = await client.generate(request("slow", 3))
        quick = await client.generate(request("quick", 3))
        for token in range(5):
            await engine.send({"slow": [token]})
        await engine.send({"quick": [1]})
        assert (await anext(quick)).token_ids == [1]
        chunk = await anext(slow)
    assert (chunk.token_ids, chunk.completion_tokens) == ([0, 1, 2, 3, 4], 5)


async def test_an_id_in_flight_is_refused_before_anything_is_sent() -> None:
    """The second request of an id is an error; the engine hears of the first alone, and after its
    end the id is free."""
    async with wire_engines() as (client, (engine,)):
        stream = await client.generate(request("x", 1))
        with pytest.raises(RequestInUseError, match="'x' is in flight"):
            await client.generate(request("x", 2))
        await engine.send({"x": [1]}, finish=FinishKind.STOP)
        assert len([chunk async for chunk in stream]) == 1
        again = await client.generate(request("x", 3))
        sent = [await engine.receive_request() for _ in range(2)]
        await again.aclose()
    assert [len(each.prompt_ids) for each in sent] == [1, 3]


@pytest.mark.parametrize("way", ["aclose", "cancel", "drop"])
async def test_leaving_a_stream_aborts_its_request(way: str) -> None:
    """Closing a stream, cancelling its reader and letting go of it all abort the request, once."""
    async with wire_engines() as (client, (engine,)):
        stream = await client.generate(request("r1", 3))
        await engine.receive_request()
        if way == "aclose":
            await stream.aclose()
        elif way == "cancel":
            reader = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            reader.cancel()
        del stream
        gc.collect()
        assert await engine.receive() == AbortRequests(("r1",))
        other = await client.generate(request("r2", 3))
        assert (await engine.receive_request()).request_id == "r2"
        await engine.send({"r1": [5], "r2": [6]})
        assert (await anext(other)).token_ids == [6]


async def test_an_aborted_id_stays_taken_for_a_while() -> None:
    """A late chunk of the aborted request must not reach a new one of the same id."""
    async with wire_engines() as (client, _):
        stream = await client.generate(request("r1", 3))
        await stream.aclose()
        with pytest.raises(RequestInUseError, match="aborted just now"):
            await client.generate(request("r1", 3))


async def test_an_abort_ends_the_stream_by_itself() -> None:
    """`abort` tells whether the id was in flight; the stream ends as aborted after what waited in
    it, without a word of the engine."""
    async with wire_engines() as (client, (engine,)):
        stream = await client.generate(request("r1", 3))
        await engine.receive_request()
        await engine.send({"r1": [7]})
        await anext(stream)
        assert await client.abort("r1")
        assert not await client.abort("r1")
        (last,) = [chunk async for chunk in stream]
        assert await engine.receive() == AbortRequests(("r1",))
    assert last.finish is not None
    assert (last.finish.kind, last.completion_tokens) == (FinishKind.ABORT, 1)


async def test_lost_tokens_end_their_stream() -> None:
    """A batch that cannot be read is skipped and counted; the stream that misses its tokens is
    aborted instead of going on with a hole."""
    async with wire_engines() as (client, (engine,)):
        torn = await client.generate(request("torn", 3))
        whole = await client.generate(request("whole", 3))
        await engine.send({"torn": [1]})
        await anext(torn)
        await engine.send_frames(b"\x92\xb3BatchTokenIDOutSlim")
        engine.skip("torn", 1)
        await engine.send({"torn": [3], "whole": [4]})
        assert (await anext(whole)).token_ids == [4]
        (last,) = [chunk async for chunk in torn]
    assert client.num_dropped == 1
    assert last.finish is not None
    assert (last.finish.kind, last.token_ids) == (FinishKind.ABORT, [])


async def test_a_second_reader_of_a_stream_is_refused() -> None:
    """Two tasks that read one stream are a mistake of the caller's, which is told."""
    async with wire_engines() as (client, (engine,)):
        stream = await client.generate(request("r1", 3))
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one reader"):
            await anext(stream)
        await engine.send({"r1": [1]})
        assert (await first).token_ids == [1]
