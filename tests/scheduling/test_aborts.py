# SPDX-License-Identifier: MIT
"""Ending a request in every state it can be in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tokenspeed_core.errors import EngineError
from tokenspeed_hookspecs import CacheOperationKind, CommitOutcome, StorageTick

FORCED = {"snapshot_pages": 257, "max_retracted": 8, "force_retraction_every": 4}


def test_an_abort_waits_for_the_forward_in_flight(rounds: Any) -> None:
    """An aborted request keeps its pages until its last forward is answered."""
    loop = rounds(1)
    loop.submit("a", budget=50)
    loop.round()
    loop.round()
    assert not loop.abort("a")
    loop.round()
    assert loop.driver.native.active_lcm_blocks() > 0  # committed, and one forward still names it
    loop.round()
    assert loop.driver.native.active_lcm_blocks() == 0


def test_a_held_request_runs_no_further_forward(rounds: Any) -> None:
    """A row the wheel plans for a request that waits for its abort never reaches the device."""
    loop = rounds(1)
    loop.submit("a", budget=50)
    loop.submit("b", budget=50)
    for _ in range(3):
        loop.round()
    loop.abort("a")
    batches = [loop.round().batch.request_ids for _ in range(3)]
    assert batches == [["a", "b"], ["b"], ["b"]]


def test_a_batch_of_held_requests_only_is_no_batch(rounds: Any) -> None:
    """When every row is withheld there is nothing to run, and all pages come back."""
    loop = rounds(1)
    loop.submit("a", budget=50)
    for _ in range(3):
        loop.round()
    loop.abort("a")
    loop.round()
    plan = loop.round()
    assert (plan.batch, plan.needs_device) == (None, False)
    loop.drain()
    assert loop.driver.can_clear_cache()


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("num_prompt", [40, 700])
@pytest.mark.parametrize("when", range(1, 8))
def test_an_abort_at_any_round_returns_all(
    rounds: Any, depth: int, num_prompt: int, when: int
) -> None:
    """Aborted inside its prompt or later, a request leaves nothing behind, at any depth."""
    loop = rounds(depth)
    loop.submit("a", num_prompt, budget=50)
    loop.submit("b", budget=9)
    for _ in range(when):
        loop.round()
    loop.abort("a")
    loop.drain()
    assert loop.driver.can_clear_cache()
    assert loop.driver.native.available_lcm_blocks() == 512


def test_an_abort_lets_the_others_run(rounds: Any) -> None:
    """The neighbours of an aborted row get exactly their tokens."""
    loop = rounds(1)
    requests = [loop.submit(name, budget=9) for name in "abc"]
    for _ in range(4):
        loop.round()
    loop.abort("b")
    loop.drain()
    assert [len(request.tokens) for request in requests] == [9, 3, 9]


def test_cancel_of_an_unknown_id(rounds: Any) -> None:
    """There is nothing to end."""
    assert not rounds().driver.cancel("nobody")


def test_cancel_in_the_backlog(rounds: Any) -> None:
    """A request the wheel never saw ends at once, and its id is free at once."""
    loop = rounds()
    loop.submit("a")
    assert loop.abort("a")
    assert loop.driver.has_room_for("a")
    assert loop.round().batch is None


def test_cancel_in_the_wheel_before_the_first_chunk(rounds: Any) -> None:
    """A request that was handed over and not begun ends without a forward."""
    loop = rounds()
    loop.driver.advance_head(StorageTick(allow_forward=False), [])
    loop.submit("a")
    loop.round()
    assert loop.driver.native.waiting_size() == 1
    loop.driver.advance_head(StorageTick(), [])
    assert loop.abort("a")
    loop.drain()
    assert loop.ran("a") == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_cancel_of_a_running_request(rounds: Any, depth: int) -> None:
    """A running request ends with its next commit, not by a cancel."""
    loop = rounds(depth)
    loop.submit("a", budget=50)
    loop.round()
    assert not loop.driver.cancel("a")
    assert loop.driver.sizes.prefilling == 1


def retracted(loop: Any, *, until: CacheOperationKind, acknowledged: bool) -> str:
    """Run until some request's image is moved that way; its id."""
    moved: list[str] = []
    while not moved:
        moved = [str(one.request_id) for one in loop.round().operations if one.kind is until]
    if acknowledged:
        loop.round()
    return moved[0]


STATES: dict[str, Callable[[Any], str]] = {
    "being stored": lambda loop: retracted(
        loop, until=CacheOperationKind.SNAPSHOT, acknowledged=False
    ),
    "stored": lambda loop: retracted(loop, until=CacheOperationKind.SNAPSHOT, acknowledged=True),
    "being restored": lambda loop: retracted(
        loop, until=CacheOperationKind.RESTORE, acknowledged=False
    ),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("depth", [0, 1])
def test_cancel_of_a_retracted_request(rounds: Any, state: str, depth: int) -> None:
    """A retracted request ends at once and frees its image; 500 cycles leave no trace."""
    loop = rounds(depth, ack_after=2, **FORCED)
    free = loop.driver.native.snapshot_pool_free_blocks()
    loop.submit("stays", budget=1 << 12)
    for cycle in range(500):
        loop.submit(f"a{cycle}", 20, budget=100)
        victim = STATES[state](loop)
        if victim != "stays":
            assert loop.abort(victim)
        loop.abort(f"a{cycle}")
    loop.abort("stays")
    loop.drain()
    assert loop.driver.native.snapshot_pool_free_blocks() == free
    assert loop.driver.native.available_lcm_blocks() == 512


def test_a_restored_request_ends_by_its_commit(rounds: Any) -> None:
    """Once its image is back on the device a request is running again."""
    loop = rounds(**FORCED)
    loop.submit("a", budget=50)
    victim = retracted(loop, until=CacheOperationKind.RESTORE, acknowledged=True)
    assert not loop.abort(victim)
    loop.drain()
    assert loop.driver.can_clear_cache()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_id_used_again_at_once(rounds: Any, depth: int) -> None:
    """Five hundred requests of one id follow each other, each with exactly its own tokens."""
    loop = rounds(depth)
    for _ in range(500):
        while not loop.driver.has_room_for("a"):
            loop.round()
        request = loop.submit("a", 10, budget=2)
        while not request.is_over:
            loop.round()
        assert len(request.tokens) == 2
    loop.drain()
    incarnations = [plan.batch.incarnations[0] for plan in loop.plans if plan.batch is not None]
    assert sorted(set(incarnations)) == list(range(1, 501))


def test_an_id_waits_for_its_late_rows(rounds: Any) -> None:
    """While a forward of the finished request is in flight its id stays taken."""
    loop = rounds(2)
    driver = loop.driver
    loop.submit("a", budget=1)
    first, second = driver.plan().batch, driver.plan().batch
    driver.commit(first, CommitOutcome([7], finished=[0]))
    driver.advance()
    driver.plan()
    assert not driver.has_room_for("a")
    driver.commit(second, CommitOutcome([-1]))
    driver.advance()
    driver.plan()
    assert driver.has_room_for("a")


def test_the_wheel_failing_is_an_engine_error(rounds: Any) -> None:
    """What the wheel raises inside a call names the call."""
    loop = rounds()
    loop.submit("a")
    batch = loop.driver.plan().batch
    loop.driver.commit(batch, CommitOutcome([7]))
    loop.driver.advance()
    batch = loop.driver.plan().batch
    loop.driver.commit(batch, CommitOutcome([7], more={0: [7] * 5000}))
    loop.driver.advance()
    with pytest.raises(EngineError, match="next_execution_plan"):
        loop.driver.plan()
