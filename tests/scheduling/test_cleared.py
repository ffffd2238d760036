# SPDX-License-Identifier: MIT
"""Among the cache events, one stands for all the removals of a clearing."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed_core.testing import EngineFixture, EngineSetup
from tokenspeed_hookspecs import (
    CacheCleared,
    ControlRequest,
    Plugin,
    Round,
    SchedulerSettings,
    hookimpl,
)


class Recording(Plugin):
    """Keeps the kinds of all events."""

    name = "recording"

    def __init__(self, options: object, engine: Any) -> None:
        super().__init__(options, engine)
        self.kinds: list[str] = []

    @hookimpl
    def configure_scheduler(self, settings: SchedulerSettings) -> None:
        settings.native_options["enable_kv_cache_events"] = True

    @hookimpl
    def scheduler_events(self, round: Round) -> None:
        self.kinds += [type(event).__name__ for event in round.scheduler_events]


@pytest.fixture
def recorded() -> tuple[EngineFixture, list[str]]:
    """An engine that has two blocks cached, and the kinds of its events from now on."""
    engine = EngineFixture(EngineSetup(plugins=(Recording,)))
    engine.add("a", 33, budget=1)
    engine.run_to_end("a")
    engine.rounds(2)
    (plugin,) = (each.instance for each in engine.rank.plugins)
    assert isinstance(plugin, Recording)
    assert set(plugin.kinds) == {"BlockStored"}
    plugin.kinds.clear()
    return engine, plugin.kinds


def test_a_flush_is_one_event(recorded: tuple[EngineFixture, list[str]]) -> None:
    """It stands for every removal; a flush of nothing is no event."""
    engine, kinds = recorded
    for _ in range(2):
        engine.put(ControlRequest("flush_cache"))
        engine.rounds(2)
    assert kinds == [CacheCleared.__name__]


def test_what_was_cached_before_and_after_stays_in_order(
    recorded: tuple[EngineFixture, list[str]],
) -> None:
    """Blocks that are stored anew come behind the clearing."""
    engine, kinds = recorded
    engine.put(ControlRequest("flush_cache"))
    engine.add("b", 33, budget=1)
    engine.run_to_end("b")
    engine.rounds(2)
    assert kinds[0] == CacheCleared.__name__
    assert set(kinds[1:]) == {"BlockStored"}
