# SPDX-License-Identifier: MIT
"""Which engine a request goes to."""

from __future__ import annotations

from collections import Counter

import pytest

from tokenspeed_core.client.routing import LeastLoaded, RoundRobin
from tokenspeed_core.testing import request
from tokenspeed_core.testing.wire_engine import wire_engines
from tokenspeed_hookspecs import FinishKind, Load


def test_round_robin_takes_engines_in_turn() -> None:
    """One after the other, whatever they report."""
    router, loads = RoundRobin(), [Load(9, 9, 9, 9), None, None]
    assert [router.pick([5, 0, 0], loads) for _ in range(4)] == [0, 1, 2, 0]


def test_a_burst_spreads_over_equal_engines() -> None:
    """What was just sent counts before any engine reports it."""
    router, in_flight = LeastLoaded(), [0, 0, 0]
    for _ in range(9):
        in_flight[router.pick(in_flight, [None] * 3)] += 1
    assert in_flight == [3, 3, 3]


LOADS = {
    "fewer requests of anybody": ([0, 0], [Load(4, 0, 1, 10), Load(3, 0, 1, 10)], 1),
    "our own count where the report is older": ([5, 0], [Load(1, 0, 1, 10), Load(4, 0, 1, 10)], 1),
    "a queue before a full cache weighs more": ([0, 0], [Load(6, 0, 9, 10), Load(3, 2, 9, 10)], 0),
    "a queue before a free cache does not": ([0, 0], [Load(6, 0, 1, 10), Load(3, 2, 1, 10)], 1),
    "no pages, no usage": ([0, 0], [Load(1, 1, 0, 0), Load(1, 0, 0, 0)], 1),
}


@pytest.mark.parametrize(("in_flight", "loads", "expected"), LOADS.values(), ids=LOADS)
def test_the_least_loaded_engine_is_taken(
    in_flight: list[int], loads: list[Load | None], expected: int
) -> None:
    """The score counts requests, and what waits before a full cache six times over."""
    assert LeastLoaded().pick(in_flight, loads) == expected


@pytest.mark.anyio
async def test_requests_go_round_and_a_pinned_one_where_it_says() -> None:
    """Unpinned requests alternate; a rank is obeyed, and an unknown one refused unsent."""
    async with wire_engines(2, first_engine=3) as (client, engines):
        for i in range(4):
            await client.generate(request(f"free{i}", 3))
        await client.generate(request("pinned", 3), rank=1)
        with pytest.raises(ValueError, match=r"rank in \[0, 2\), got 2"):
            await client.generate(request("lost", 3), rank=2)
        await client.generate(request("lost", 3), rank=0)
        got = [
            [(await engine.receive_request()).request_id for _ in range(3)] for engine in engines
        ]
    assert got == [["free0", "free2", "lost"], ["free1", "free3", "pinned"]]


@pytest.mark.anyio
async def test_reported_loads_are_known_and_obeyed() -> None:
    """A snapshot stays until the next one; what ended counts no more."""
    async with wire_engines(2, routing="least_loaded") as (client, (one, two)):
        assert not any(client.loads)
        stream = await client.generate(request("r1", 3), rank=0)
        await one.send({"r1": [1]}, finish=FinishKind.STOP, load=Load(8, 0, 1, 10))
        assert [chunk.token_ids async for chunk in stream] == [[1]]
        await one.send({})
        for i in range(6):
            await client.generate(request(f"next{i}", 3))
        assert client.loads == (Load(8, 0, 1, 10), None)
        got = Counter([(await two.receive_request()).request_id[:4] for _ in range(6)])
    assert got == {"next": 6}
