# SPDX-License-Identifier: MIT
"""What an operator sees: series, and lines in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from attrs import define, field

from tokenspeed_core.testing import EngineSetup, Tiers
from tokenspeed_hookspecs import Engine, Instruments, Plugin, hookimpl
from tokenspeed_l3.store import IoResult
from tokenspeed_l3.testing import ScriptedStore

Deploy = Callable[..., Any]
PROMPT = range(1, 66)


@define(eq=False)
class Series:
    """A counter, gauge or histogram that keeps what it was told."""

    total: float = 0.0
    values: list[float] = field(factory=list)

    def add(self, amount: float = 1) -> None:
        assert amount >= 0
        self.total += amount

    def set(self, value: float) -> None:
        self.values.append(value)

    def observe(self, value: float) -> None:
        self.values.append(value)


class Watching(Plugin):
    """Keeps every series by name and label."""

    name = "watching"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.series: dict[str, Series] = {}

    @hookimpl
    def instruments(self) -> Instruments | None:
        return self

    def counter(
        self, name: str, meaning: str, *, labels: Mapping[str, str] | None = None
    ) -> Series:
        return self._kept(name, labels)

    def gauge(self, name: str, meaning: str, *, labels: Mapping[str, str] | None = None) -> Series:
        return self._kept(name, labels)

    def histogram(
        self,
        name: str,
        meaning: str,
        *,
        buckets: Sequence[float],
        labels: Mapping[str, str] | None = None,
    ) -> Series:
        return self._kept(name, labels)

    def before_reading(self, settle: Callable[[], None]) -> None:
        """What the core keeps of its own time is not asked for."""

    def _kept(self, name: str, labels: Mapping[str, str] | None) -> Series:
        return self.series.setdefault(" ".join([name, *(labels or {}).values()]), Series())


def told(deployment: Any) -> dict[str, Series]:
    """The series of the first rank."""
    (plugin,) = (each for each in deployment.engine.rank.plugins if each.name == "watching")
    found: dict[str, Series] = plugin.instance.series
    return found


def test_hits_bytes_and_times_are_counted_by_kind(deploy: Deploy) -> None:
    """The totals are the store's own, and latencies are there for each operation."""
    store = ScriptedStore()
    setup = EngineSetup(tiers=Tiers.HOST, plugins=(Watching,))
    first = deploy(store, setup=setup)
    first.ask("first", PROMPT, budget=4)
    first.settle()
    second = deploy(store, setup=setup)
    second.ask("second", PROMPT, budget=4)
    second.settle()
    put, got = told(first), told(second)
    assert put["l3_hits put"].total == len(store.objects)
    assert put["l3_bytes put"].total == sum(map(len, store.objects.values()))
    assert got["l3_hits get"].total == 4
    assert len(got["l3_operation_seconds get"].values) == got["l3_operations get"].total == 1
    assert got["l3_health"].values[-1] == 0
    assert got["l3_scheduler operations"].values[-1] == 0


def test_cached_tokens_are_counted_by_tier(deploy: Deploy) -> None:
    """Where they were when their request came: a prompt asked twice is the device's then."""
    store = ScriptedStore()
    first = deploy(store)
    first.ask("first", PROMPT, budget=4)
    first.settle()
    second = deploy(store, setup=EngineSetup(tiers=Tiers.HOST, plugins=(Watching,)))
    for name in ("stored", "again"):
        second.ask(name, PROMPT, budget=4)
    series = told(second)
    found = [series[f"l3_cached_tokens {tier}"].total for tier in ("device", "host", "storage")]
    assert found == [64, 0, 64]


def test_what_a_store_counts_is_told(deploy: Deploy) -> None:
    """A full store is no failure, so its own count is all there is to see of it."""

    class Full(ScriptedStore):
        def counts(self) -> Mapping[str, int]:
            return {"no_space": self.calls["put"]}

    deployment = deploy(
        Full(answer=lambda call, num_keys: IoResult([False] * num_keys) if call == "put" else None),
        setup=EngineSetup(tiers=Tiers.HOST, plugins=(Watching,)),
    )
    deployment.ask("first", PROMPT, budget=4)
    deployment.settle()
    series = told(deployment)
    assert series["l3_store no_space"].total == series["l3_operations put"].total > 0
    assert series["l3_health"].values[-1] == 0


def test_failures_and_what_was_not_asked_are_counted(deploy: Deploy) -> None:
    """The health is seen too."""
    setup = EngineSetup(tiers=Tiers.HOST, plugins=(Watching,))
    deployment = deploy(ScriptedStore(down={"query"}), setup=setup)
    for number in range(3):
        deployment.ask(f"q{number}", range(100 * number, 100 * number + 40), budget=2)
    deployment.settle()
    series = told(deployment)
    assert series["l3_failures query"].total == 1
    assert series["l3_health"].values[-1] == 2


def test_pages_that_something_may_still_touch_are_told_loudly_and_once(
    deploy: Deploy, caplog: pytest.LogCaptureFixture
) -> None:
    """They stay held for good, and nothing is put any more; requests go on."""
    store = ScriptedStore(down={"put"}, failures_retire=False)
    deployment = deploy(store, failure_threshold=100)
    for number in range(3):
        deployment.ask(f"q{number}", range(100 * number, 100 * number + 40), budget=2)
        deployment.world.rounds(5)
    deployment.until(lambda: deployment.engine.scheduler.storage_counts["quarantined"])
    deployment.ask("later", range(900, 940), budget=2)
    lines = Counter(record.getMessage() for record in caplog.records if "never used" in record.msg)
    assert sum(lines.values()) == 1
    assert "nothing is put until a restart" in next(iter(lines))
