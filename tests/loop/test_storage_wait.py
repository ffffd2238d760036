# SPDX-License-Identifier: MIT
"""An engine that only waits for a store looks again soon, and does not spin."""

from __future__ import annotations

from collections.abc import Sequence

from tokenspeed_core.loop.event_loop import HELD_WAIT_S, IDLE_WAIT_S
from tokenspeed_core.testing import EngineFixture, EngineSetup, ManualFrontend, Tiers
from tokenspeed_hookspecs import (
    Message,
    Plugin,
    Round,
    SchedulerSettings,
    StorageOperation,
    StoragePressure,
    StorageResult,
    StorageSettings,
    StorageTick,
    hookimpl,
)


class Slow(Plugin):
    """Answers a query in the round it is told to, with nothing found."""

    name = "slow"
    operations: tuple[StorageOperation, ...] = ()
    is_ready = False

    @hookimpl
    def configure_scheduler(self, settings: SchedulerSettings) -> None:
        settings.storage = StorageSettings(
            max_operations=8,
            max_keys_per_operation=8,
            max_host_pages=64,
            metadata_entries=64,
            min_prefetch_tokens=1,
            max_prefetch_tokens=1024,
            wait_timeout_us=10**9,
            ready_timeout_us=10**9,
            pressure_high=StoragePressure(64, 2**40, 10**9),
            pressure_low=StoragePressure(32, 2**39, 5 * 10**8),
        )

    @hookimpl
    def planned(self, round: Round) -> None:
        assert round.plan is not None
        self.operations += round.plan.storage

    @hookimpl
    def storage_tick(self, round: Round) -> StorageTick | None:
        if not self.is_ready:
            return StorageTick()
        done, self.operations = self.operations, ()
        results = [StorageResult(each.op_id, [False] * len(each.keys)) for each in done]
        return StorageTick(results=tuple(results))


class Waiting(ManualFrontend):
    """Keeps how long it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def receive(self, wait_s: float | None) -> Sequence[Message]:
        self.waits.append(wait_s)
        return super().receive(wait_s)


def test_a_rank_that_waits_for_a_store_and_nothing_else_waits_a_moment() -> None:
    """Once the store answered, rounds follow each other again; idle, it waits as ever."""
    frontend = Waiting()
    engine = EngineFixture(EngineSetup(tiers=Tiers.HOST, plugins=(Slow,), frontend=frontend))
    (plugin,) = (each.instance for each in engine.rank.plugins)
    assert isinstance(plugin, Slow)
    engine.add("r", 65, budget=4)
    engine.rounds(5)
    assert frontend.waits[2:] == [HELD_WAIT_S] * 3
    plugin.is_ready = True
    engine.round()
    frontend.waits.clear()
    engine.run_to_end("r")
    assert HELD_WAIT_S not in frontend.waits
    engine.run_until(lambda: engine.is_quiet)
    engine.round()
    assert frontend.waits[-1] == IDLE_WAIT_S
