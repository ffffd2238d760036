# SPDX-License-Identifier: MIT
"""How an engine's end shows, and that a client can go on with another one."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from tokenspeed_core.client import ClientConfig, EngineClient, private_addresses
from tokenspeed_core.testing import request
from tokenspeed_core.testing.wire_engine import WireEngine, wire_engines
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    Chunk,
    ChunkStream,
    ControlRequest,
    EngineUnavailableError,
    FinishKind,
)

pytestmark = pytest.mark.anyio


async def _end_of(stream: ChunkStream) -> tuple[Sequence[Chunk], EngineUnavailableError]:
    """The chunks that came before the engine's end, and how that was told."""
    chunks: list[Chunk] = []
    try:
        async for chunk in stream:
            chunks.append(chunk)
    except EngineUnavailableError as error:
        return chunks, error
    raise AssertionError(f"expected an engine's end, got that of the request: {chunks}")


async def test_a_death_notice_ends_every_stream_with_one_error() -> None:
    """Streams of the other engine end too, after what had come; each tells it once, and later
    calls fail at once."""
    async with wire_engines(2) as (client, (one, two)):
        streams = [await client.generate(request(f"r{i}", 3)) for i in range(4)]
        await two.send({"r1": [7]})
        await asyncio.sleep(0.05)
        await one.die()
        ends = [await _end_of(stream) for stream in streams]
        assert [chunk.token_ids for chunks, _ in ends for chunk in chunks] == [[7]]
        assert len({id(error) for _, error in ends}) == 1
        assert "engine 0 has ended" in str(client.failure)
        assert [chunk async for chunk in streams[0]] == []
        with pytest.raises(EngineUnavailableError, match="engine 0"):
            await client.generate(request("r5", 3))
        with pytest.raises(EngineUnavailableError, match="engine 0"):
            await client.control(ControlRequest("resume"))
        assert not await client.abort("r1")


async def test_an_engine_that_hangs_up_counts_as_dead() -> None:
    """A killed engine sends nothing; that its socket is gone is noticed within a second."""
    async with wire_engines(2) as (client, (_, two)):
        stream = await client.generate(request("r1", 3), rank=0)
        two.close()
        async with asyncio.timeout(10.0):
            await _end_of(stream)
        assert "engine 1 counts as dead" in str(client.failure)


async def test_what_an_engine_said_before_it_hung_up_is_heard() -> None:
    """Its last chunks come by another socket than the news that it is gone."""
    async with wire_engines() as (client, (engine,)):
        stream = await client.generate(request("r1", 3))
        await engine.receive_request()
        await engine.send({"r1": [1]}, finish=FinishKind.STOP)
        await asyncio.sleep(0.05)
        engine.close()
        assert [chunk.token_ids async for chunk in stream] == [[1]]


async def test_an_engine_that_takes_nothing_counts_as_dead() -> None:
    """Past the send timeout a full queue ends the link; nothing blocked meanwhile, and what was
    not sent is undone."""
    async with wire_engines(send_queue=1, send_timeout_s=0.2) as (client, _):
        sends = [
            asyncio.ensure_future(client.generate(request(f"r{i}", 100_000))) for i in range(20)
        ]
        ends = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(ends[-1], EngineUnavailableError)
        assert "took no message for 0.2 s" in str(client.failure)


async def test_a_send_that_is_given_up_is_withdrawn() -> None:
    """A request that waits to be sent and whose caller leaves is never sent, and its id is free;
    what waits behind it keeps its order."""
    async with wire_engines(send_queue=1) as (client, (engine,)):
        big = list(range(100_000))
        sends = [asyncio.ensure_future(client.generate(request(f"r{i}", big))) for i in range(20)]
        await asyncio.sleep(0.05)
        given_up = next(i for i, send in enumerate(sends) if not send.done())
        sends[given_up].cancel()
        await asyncio.sleep(0)
        again = asyncio.ensure_future(client.generate(request(f"r{given_up}", 1)))
        seen = [await engine.receive_request() for _ in range(20)]
        await again
    expected = [f"r{i}" for i in range(20) if i != given_up] + [f"r{given_up}"]
    assert [each.request_id for each in seen] == expected
    assert len(seen[-1].prompt_ids) == 1


async def test_silence_counts_only_while_something_is_owed() -> None:
    """An idle engine may be silent for long; one that owes a chunk may not."""
    async with wire_engines(2, silence_limit_s=0.2) as (client, _):
        await asyncio.sleep(0.5)
        assert client.failure is None
        stream = await client.generate(request("r1", 3), rank=1)
        await _end_of(stream)
        assert "engine 1 counts as dead: it was silent for 0.2 s" in str(client.failure)


async def test_a_batch_without_rows_is_a_sign_of_life() -> None:
    """An engine that is busy for long says so, and is not given up."""
    async with wire_engines(silence_limit_s=1.0) as (client, (engine,)):
        stream = await client.generate(request("r1", 3))
        for _ in range(25):
            await engine.send({})
            await asyncio.sleep(0.05)
        await stream.aclose()
        assert client.failure is None


async def test_a_restarted_engine_is_met_at_the_same_addresses() -> None:
    """After a death the client is bound again, another engine registers, and requests run; ids of
    before are free."""
    async with wire_engines() as (client, (first,)):
        await client.generate(request("r1", 3))
        await first.die()
        await asyncio.sleep(0.05)
        first.close()
        client.bind()
        engine = WireEngine(client.addresses.handshake)
        await asyncio.gather(client.accept(), engine.register())
        assert client.failure is None
        stream = await client.generate(request("r1", 3))
        await engine.send({"r1": [1]}, finish=FinishKind.STOP)
        assert [chunk.token_ids async for chunk in stream] == [[1]]
        engine.close()


async def test_a_closed_client_ends_its_streams() -> None:
    """Who still reads learns that the client was closed."""
    async with wire_engines() as (client, _):
        stream = await client.generate(request("r1", 3))
        reading = asyncio.ensure_future(_end_of(stream))
        await asyncio.sleep(0)
        await client.aclose()
        _, error = await reading
    assert "closed" in str(error)


async def test_a_request_the_wire_has_no_place_for_leaves_nothing() -> None:
    """It is a ValueError; the id is free and nothing was sent."""
    async with wire_engines() as (client, (engine,)):
        bad = AddRequest("r1", [1], features={"custom": object()})
        with pytest.raises(ValueError, match="'r1'"):
            await client.generate(bad)
        stream = await client.generate(request("r1", 3))
        assert (await engine.receive_request()).prompt_ids == [1, 2, 3]
        await stream.aclose()
        assert await engine.receive() == AbortRequests(("r1",))


async def test_a_client_that_is_forgotten_goes_away() -> None:
    """Letting go of a bound client without closing it hangs nothing and frees its addresses."""
    with private_addresses() as addresses:
        for _ in range(2):
            EngineClient(ClientConfig(addresses=addresses)).bind()
            gc.collect()
