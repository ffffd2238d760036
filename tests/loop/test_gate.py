# SPDX-License-Identifier: MIT
"""One blocking operation a round, on every data-parallel rank together."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from attrs import evolve, field, frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.controls import Controls
from tokenspeed_core.loop.gate import SETTLING_ROUNDS, Gate
from tokenspeed_core.ranks.single import SingleGroup
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_hookspecs import (
    CacheGroup,
    ControlReply,
    GatedOperation,
    Round,
    SchedulerDriver,
    SchedulerSettings,
)


class World:
    """A group whose other member, rank 1, always sends the same row, and agrees or says why not."""

    size = 2
    index = 0

    def __init__(self, other: Sequence[int], *, yes: int = 1) -> None:
        self.other = other
        self.yes = yes

    def agree_min(self, values: Sequence[int]) -> list[int]:
        return [min(value, self.yes) for value in values]

    def agree_max(self, values: Sequence[int]) -> list[int]:
        return [max(pair) for pair in zip(values, self.other, strict=True)]

    def total(self, values: Sequence[int]) -> list[int]:
        return [sum(pair) for pair in zip(values, self.other, strict=True)]

    def gather(self, payload: bytes) -> list[bytes]:
        return [payload, json.dumps([1, None if self.yes else "no room"]).encode()]

    def broadcast(self, source: int, payload: bytes) -> bytes:
        return payload


@frozen
class WorldRanks:
    """This rank in a world of two; its replica is itself."""

    dp: World | None
    rank: int = 0
    world_size: int = 2
    pp: None = None
    ep: None = None
    replica: SingleGroup = field(factory=SingleGroup)


def gate_of(
    world: World | None,
    controls: Controls | None = None,
    *,
    scheduler: SchedulerDriver | None = None,
) -> Gate:
    """A gate of a rank in this world that has no request, in front of an idle scheduler."""
    return Gate(
        WorldRanks(world),
        controls or Controls(),
        scheduler=scheduler or idle_scheduler(),
        has_requests=lambda: False,
    )


def idle_scheduler() -> NativeScheduler:
    """A scheduler without requests."""
    return NativeScheduler(SchedulerSettings(groups=(CacheGroup("full", 64),)))


class Pinned(NativeScheduler):
    """Its cache is pinned by something for ever."""

    def can_clear_cache(self) -> bool:
        """It never can."""
        return False


def operation(name: str, code: int, done: list[str]) -> GatedOperation:
    """An operation that notes its name when it runs."""

    def run() -> ControlReply:
        done.append(name)
        return ControlReply(name, success=True)

    return GatedOperation(code, name, run)


def test_frontend_operations_go_first_one_a_round() -> None:
    """With both queues full, the frontend's head runs first and only one runs a round."""
    done: list[str] = []
    controls = Controls()
    gate = gate_of(None, controls)
    gate.enqueue(operation("internal", 1, done))
    gate.enqueue_requested(operation("asked", 2, done))
    gate.run(Round(1))
    assert done == ["asked"]
    gate.run(Round(1))
    assert done == ["asked", "internal"]
    assert not gate.is_busy
    assert [reply.name for reply in controls.take_replies()] == ["asked", "internal"]


@pytest.mark.parametrize(
    ("other", "ran"),
    [([0, 0, 0, 0, 0, 0, 0, 0], []), ([0, -1, 5, -5, 0, 0, 0, 0], ["asked"])],
    ids=["the other rank has none", "both have it"],
)
def test_an_operation_waits_for_every_rank(other: list[int], ran: list[str]) -> None:
    """A head pops only in the round in which every rank holds one."""
    done: list[str] = []
    gate = gate_of(World(other))
    gate.enqueue_requested(operation("asked", 5, done))
    gate.run(Round(1))
    assert done == ran


def test_different_operations_at_the_heads_end_the_rank() -> None:
    """Ranks that hold different operations cannot go on together."""
    gate = gate_of(World([0, -1, 6, -6, 0, 0, 0, 0]))
    gate.enqueue_requested(operation("asked", 5, []))
    with pytest.raises(EngineError, match="different frontend operations"):
        gate.run(Round(1))


def test_a_code_below_one_is_refused() -> None:
    """Code 0 means an empty queue, so an operation may not use it."""
    with pytest.raises(ValueError, match="codes start at 1"):
        gate_of(None).enqueue(operation("bad", 0, []))


def test_an_operation_that_raises_is_named() -> None:
    """What a gated operation raises ends the rank with the operation's name."""

    def run() -> ControlReply:
        raise ZeroDivisionError("oops")

    gate = gate_of(None)
    gate.enqueue(GatedOperation(1, "swap", run))
    with pytest.raises(EngineError, match="gated operation 'swap' failed: ZeroDivisionError: oops"):
        gate.run(Round(1))


def test_what_cannot_be_put_in_place_is_named() -> None:
    """Once all ranks succeeded there is no way back, so that ends the rank as well."""

    def made(_: Round) -> None:
        raise ZeroDivisionError("oops")

    gate = gate_of(None)
    gate.enqueue_requested(evolve(operation("swap", 5, []), succeeded=made))
    with pytest.raises(EngineError, match="gated operation 'swap' failed: ZeroDivisionError: oops"):
        gate.run(Round(1))


def test_success_on_one_rank_only_is_a_failure() -> None:
    """A frontend's operation succeeds on every rank or is answered as failed."""
    controls = Controls()
    gate = gate_of(World([0, -1, 5, -5, 0, 0, 0, 0], yes=0), controls)
    gate.enqueue_requested(operation("asked", 5, []))
    gate.run(Round(1))
    (reply,) = controls.take_replies()
    assert (reply.success, reply.message) == (False, "asked failed on rank 1: no room")


@pytest.mark.parametrize("yes", [0, 1])
def test_what_is_ready_is_made_on_all_ranks_or_taken_back(yes: int) -> None:
    """It is told whether every rank succeeded, and only then the frontend is."""
    done: list[str] = []
    controls = Controls()
    gate = gate_of(World([0, -1, 5, -5, 0, 0, 0, 0], yes=yes), controls)
    told = evolve(
        operation("asked", 5, done),
        succeeded=lambda _: done.append(f"made {controls.take_replies()}"),
        failed=lambda: done.append(f"taken back {controls.take_replies()}"),
    )
    gate.enqueue_requested(told)
    gate.run(Round(1))
    assert done == ["asked", "made []" if yes else "taken back []"]
    assert len(controls.take_replies()) == 1


def test_a_flush_another_rank_wants_clears_here_and_answers_nothing() -> None:
    """One flush anywhere clears everywhere; only the rank that was asked replies."""
    controls = Controls()
    gate = gate_of(World([1, 0, 0, 0, 0, 0, 0, 0]), controls)
    gate.run(Round(1))
    assert controls.take_replies() == []
    gate.request_flush()
    gate.request_flush()
    gate.run(Round(1))
    assert [(reply.name, reply.success) for reply in controls.take_replies()] == [
        ("flush_cache", True)
    ] * 2


@pytest.mark.parametrize(("yes", "ran"), [(1, ["swap"]), (0, [])])
def test_an_operation_that_clears_the_cache_runs_only_if_every_rank_can(
    yes: int, ran: list[str]
) -> None:
    """Refused before anything was touched: no rank loads what another could not."""
    done: list[str] = []
    controls = Controls()
    gate = gate_of(World([0, -1, 5, -5, 0, 0, 0, 0], yes=yes), controls)
    gate.enqueue_requested(evolve(operation("swap", 5, done), clears_cache=True))
    gate.run(Round(1))
    assert done == ran
    assert [reply.success for reply in controls.take_replies()] == [bool(yes)]


def test_a_frontends_operation_must_answer_under_its_name() -> None:
    """A reply of another name would reach nobody, so the rank ends instead."""
    gate = gate_of(None)
    gate.enqueue_requested(evolve(operation("other", 5, []), name="asked"))
    with pytest.raises(EngineError, match="must return a ControlReply of that name"):
        gate.run(Round(1))


def test_a_flush_waits_for_what_the_last_requests_left() -> None:
    """But not for ever: a cache that stays pinned is a refusal in the end."""
    controls, done = Controls(), list[str]()
    pinned = Pinned(SchedulerSettings(groups=(CacheGroup("full", 64),)))
    gate = gate_of(None, controls, scheduler=pinned)
    gate.request_flush()
    gate.enqueue_requested(operation("plain", 5, done))
    gate.enqueue_requested(evolve(operation("swap", 6, done), clears_cache=True))
    for _ in range(5):
        gate.run(Round(1))
    assert (done, [reply.name for reply in controls.take_replies()]) == (["plain"], ["plain"])
    for _ in range(2 * SETTLING_ROUNDS + 5):
        gate.run(Round(1))
    told = [(reply.name, reply.success) for reply in controls.take_replies()]
    assert (done, told) == (["plain"], [("flush_cache", False), ("swap", False)])


def test_a_flush_waits_for_what_is_left_on_another_rank() -> None:
    """Else one rank refused what another one does a few rounds later."""
    controls, done = Controls(), list[str]()
    world = World([0, -1, 6, -6, 0, 0, 0, 1])
    gate = gate_of(world, controls)
    gate.request_flush()
    gate.enqueue_requested(evolve(operation("swap", 6, done), clears_cache=True))
    for _ in range(5):
        gate.run(Round(1))
    assert (controls.take_replies(), done) == ([], [])
    world.other = [0, -1, 6, -6, 0, 0, 0, 0]
    gate.run(Round(1))
    assert [reply.success for reply in controls.take_replies()] == [True, True]
    assert done == ["swap"]


def test_a_pin_that_nobody_waits_for_does_not_use_up_the_patience() -> None:
    """A flush that comes when a cache was pinned for long waits as long as any other."""
    controls = Controls()
    gate = gate_of(World([0, 0, 0, 0, 0, 0, 0, 1]), controls)
    for _ in range(SETTLING_ROUNDS):
        gate.run(Round(1))
    gate.request_flush()
    gate.run(Round(1))
    assert controls.take_replies() == []
