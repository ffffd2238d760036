# SPDX-License-Identifier: MIT
"""Clients that do anything at any time; a failure prints its seed."""

from __future__ import annotations

import asyncio
import random

import pytest

from tokenspeed_core.testing import EngineSetup, Served, request, served_engines, telling_tokens
from tokenspeed_core.testing.client_reading import Answer, soon
from tokenspeed_hookspecs import ControlRequest, FinishKind

pytestmark = pytest.mark.anyio
CLIENTS = 60
CONTROLS = ("is_paused", "flush_cache", "is_sleeping")


async def use(served: Served, name: str, dice: random.Random) -> None:
    """One client: reads all, leaves early, aborts, or is cancelled; its tokens are always a
    beginning of the right ones."""
    budget = dice.randrange(1, 40)
    stream = await served.client.generate(request(name, dice.randrange(1, 600), budget=budget))
    reads, way = dice.randrange(budget), dice.choice(["all", "all", "leave", "abort", "cancel"])
    answer = Answer()
    while way == "all" or len(answer.chunks) < reads:
        chunk = await soon(anext(stream, None))
        if chunk is None:
            break
        answer.chunks.append(chunk)
    assert answer.tokens == telling_tokens(len(answer.tokens)), name
    if way == "all":
        assert (len(answer.tokens), answer.kind) == (budget, "length"), name
    elif way == "leave":
        await stream.aclose()
    elif way == "abort":
        was_running = await served.client.abort(name)
        last = [each async for each in stream][-1:]
        if was_running:
            assert last[0].finish is not None
            assert last[0].finish.kind is FinishKind.ABORT
    else:
        reading = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(dice.random() * 0.003)
        reading.cancel()


async def operate(served: Served, dice: random.Random) -> None:
    """An operator who asks for things, and freezes the engines now and then."""
    for _ in range(10):
        await asyncio.sleep(dice.random() * 0.02)
        replies = await soon(served.client.control(ControlRequest(dice.choice(CONTROLS))))
        assert len(replies) == len(served.engines)
        if dice.random() < 0.3:
            for asked in (ControlRequest("pause", {"mode": "keep"}), ControlRequest("resume")):
                assert all(reply.success for reply in await soon(served.client.control(asked)))


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_clients_do_everything_ends_and_nothing_leaks(seed: int, depth: int) -> None:
    """Sixty clients and an operator on two engines: every stream is right as far as it was read,
    and both engines are back at their start."""
    dice = random.Random(seed)
    setup = EngineSetup(depth=depth, plane={"forward_ms": 0.2})
    async with served_engines(setup, count=2, routing="least_loaded") as served:
        users = [use(served, f"r{i}", random.Random(dice.random())) for i in range(CLIENTS)]
        await asyncio.gather(operate(served, dice), *users)
