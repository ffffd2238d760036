# SPDX-License-Identifier: MIT
"""Control requests: one reply of every engine."""

from __future__ import annotations

import asyncio

import pytest

from tokenspeed_core.testing.wire_engine import wire_engines
from tokenspeed_core.wire.packing import WireError
from tokenspeed_hookspecs import ControlRequest, EngineUnavailableError

pytestmark = pytest.mark.anyio
FLUSH, RESUME = ControlRequest("flush_cache"), ControlRequest("resume")


async def test_every_engine_answers_once_and_in_order() -> None:
    """The replies are listed by engine, whichever came first."""
    async with wire_engines(3) as (client, engines):
        asking = asyncio.ensure_future(client.control(ControlRequest("pause", {"mode": "wait"})))
        for engine in reversed(engines):
            assert await engine.receive() == ControlRequest("pause", {"mode": "wait"})
            await engine.reply("pause", message=f"engine {engine.index}")
        replies = await asking
    assert [reply.message for reply in replies] == ["engine 0", "engine 1", "engine 2"]


async def test_requests_of_one_name_wait_for_each_other() -> None:
    """The second flush is sent after the last reply to the first; a resume need not wait."""
    async with wire_engines(2) as (client, (one, two)):
        first = asyncio.ensure_future(client.control(FLUSH))
        second = asyncio.ensure_future(client.control(FLUSH))
        resume = asyncio.ensure_future(client.control(RESUME))
        assert [await one.receive() for _ in range(2)] == [FLUSH, RESUME]
        await one.reply("flush_cache")
        for engine in (one, two):
            await engine.reply("resume")
        await resume
        await two.reply("flush_cache")
        assert len(await first) == 2
        assert await one.receive() == FLUSH
        for engine in (one, two):
            await engine.reply("flush_cache", success=False)
        assert [reply.success for reply in await second] == [False, False]


async def test_a_late_reply_is_not_taken_for_the_next_ones() -> None:
    """A request that ran out of time keeps its place until its replies came."""
    async with wire_engines() as (client, (engine,)):
        with pytest.raises(TimeoutError, match="'flush_cache': 1 of 1 engines"):
            await client.control(FLUSH, timeout_s=0.02)
        again = asyncio.ensure_future(client.control(FLUSH))
        await engine.receive()
        await engine.reply("flush_cache", success=False)
        assert await engine.receive() == FLUSH
        await engine.reply("flush_cache", success=True)
        assert [reply.success for reply in await again] == [True]


async def test_a_request_that_waits_in_vain_is_never_sent() -> None:
    """Running out of time behind another of its name withdraws it."""
    async with wire_engines() as (client, (engine,)):
        first = asyncio.ensure_future(client.control(FLUSH))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await client.control(FLUSH, timeout_s=0.02)
        assert await engine.receive() == FLUSH
        await engine.reply("flush_cache")
        await first
        later = asyncio.ensure_future(client.control(RESUME))
        assert await engine.receive() == RESUME
        await engine.reply("resume")
        await later


async def test_a_reply_nobody_asked_for_is_dropped() -> None:
    """It is counted, and answers nothing."""
    async with wire_engines() as (client, (engine,)):
        await engine.reply("resume")
        asking = asyncio.ensure_future(client.control(FLUSH))
        await engine.reply("flush_cache")
        await asking
        assert client.num_dropped == 1


async def test_an_argument_without_a_place_on_the_wire_is_refused() -> None:
    """Nothing is sent, and the next request of the name goes out."""
    async with wire_engines() as (client, (engine,)):
        with pytest.raises(WireError, match="'pause'"):
            await client.control(ControlRequest("pause", {"mode": object()}))
        asking = asyncio.ensure_future(client.control(ControlRequest("pause", {"mode": "keep"})))
        assert await engine.receive() == ControlRequest("pause", {"mode": "keep"})
        await engine.reply("pause")
        await asking


async def test_an_engines_death_ends_what_waits_for_replies() -> None:
    """Requests that are out and those behind them end with the engine's failure."""
    async with wire_engines(2) as (client, (one, _)):
        asking = [asyncio.ensure_future(client.control(FLUSH)) for _ in range(2)]
        await one.receive()
        await one.die()
        ends = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(end) for end in ends] == [EngineUnavailableError] * 2
