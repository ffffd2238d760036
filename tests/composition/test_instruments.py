# SPDX-License-Identifier: MIT
"""What a rank records where somebody brought instruments, and that it records nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from attrs import define, field

from tokenspeed_core.composition.instruments import NoInstruments, Silent
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_core.testing import ManualFrontend, request
from tokenspeed_hookspecs import Instruments, Plugin, Round, hookimpl

Compose = Callable[..., Rank]
OFF = ("batch_log", "finish_line")


@define
class Numbers:
    """Instruments that keep, by name and label values, how often each series was recorded into."""

    counts: dict[tuple[str, ...], int] = field(factory=dict)
    settles: list[Callable[[], None]] = field(factory=list)

    def counter(self, name: str, meaning: str, *, labels: Mapping[str, str] | None = None) -> Any:
        return self._series(name, labels)

    def gauge(self, name: str, meaning: str, *, labels: Mapping[str, str] | None = None) -> Any:
        return self._series(name, labels)

    def histogram(
        self,
        name: str,
        meaning: str,
        *,
        buckets: Sequence[float],
        labels: Mapping[str, str] | None = None,
    ) -> Any:
        return self._series(name, labels)

    def before_reading(self, settle: Callable[[], None]) -> None:
        self.settles.append(settle)

    def _series(self, name: str, labels: Mapping[str, str] | None) -> Any:
        numbers, key = self, (name, *(labels or {}).values())

        class Series(Silent):
            def add(self, amount: float = 1) -> None:
                numbers.counts[key] = numbers.counts.get(key, 0) + 1

            def observe(self, value: float) -> None:
                self.add()

        return Series()


class Watching(Plugin):
    """Brings instruments, and sees forwards."""

    name = "watching"

    def __init__(self, options: object, engine: Any) -> None:
        super().__init__(options, engine)
        self.numbers = Numbers()
        self.seen: list[str] = []

    @hookimpl
    def instruments(self) -> Instruments | None:
        return self.numbers

    @hookimpl
    def committed(self, round: Round) -> None:
        self.seen.append("committed")

    @hookimpl
    def forward_done(self, round: Round) -> None:
        assert round.forward is not None
        self.seen.append("forward_done")
        raise OSError("no disk")

    @hookimpl
    def announce(self) -> Mapping[str, object]:
        return {"endpoint": "here"}


def run(compose: Compose, *plugins: type[Plugin]) -> Rank:
    """A rank that has answered one request of three tokens."""
    frontend = ManualFrontend()
    rank = compose(*plugins, frontend=frontend, without=OFF)
    rank.start()
    frontend.put(request("a", 5, budget=3))
    while not frontend.received["a"].finish:
        rank.loop.round()
    return rank


def test_nobody_watches_and_nothing_is_timed(compose: Compose) -> None:
    """Without instruments the loop is the plain one, and its instruments keep nothing."""
    rank = run(compose)
    instruments = rank.engine.instruments
    assert type(rank.loop) is EventLoop
    assert isinstance(instruments, NoInstruments)


def test_phases_hooks_and_failures_are_recorded(compose: Compose) -> None:
    """Each phase of each round, each call of a plugin, and what its observers raised."""
    rank = run(compose, Watching)
    (plugin,) = (each.instance for each in rank.plugins)
    assert isinstance(plugin, Watching)
    counts, rounds = plugin.numbers.counts, rank.loop.last_round.number
    for settle in plugin.numbers.settles:
        settle()
    assert counts["round_seconds", "plan"] == rounds
    assert counts["plugin_seconds", "watching", "committed"] == 3
    assert counts["plugin_seconds", "watching", "forward_done"] == 3
    assert counts["observer_errors", "watching"] == 3


def test_whoever_only_watches_a_commit_comes_behind(compose: Compose) -> None:
    """`forward_done` follows `committed`, and what it raises ends nothing."""
    rank = run(compose, Watching)
    (plugin,) = (each.instance for each in rank.plugins)
    assert isinstance(plugin, Watching)
    assert plugin.seen == ["committed", "forward_done"] * 3
    assert rank.dropped_observers == {"watching"}


def test_what_plugins_announce_is_by_their_names(compose: Compose) -> None:
    """A front end finds what a plugin tells under the plugin's name."""
    assert run(compose, Watching).announced() == {"watching": {"endpoint": "here"}}


def test_instruments_are_there_from_the_first_hook_on(compose: Compose) -> None:
    """A plugin before the one that brings them gets the same ones."""

    class Early(Plugin):
        name = "early"

        @hookimpl
        def start(self) -> None:
            self.engine.instruments.counter("early_starts", "Starts.").add()

    rank = run(compose, Early, Watching)
    (plugin,) = (e.instance for e in rank.plugins if isinstance(e.instance, Watching))
    assert plugin.numbers.counts["early_starts",] == 1


def test_a_loop_that_failed_names_its_phase(compose: Compose) -> None:
    """The note on the error is the same, watched or not."""

    class Broken(Plugin):
        name = "broken"

        @hookimpl
        def planned(self, round: Round) -> None:
            raise OSError("no disk")

    rank = compose(Broken, Watching, without=OFF)
    rank.start()
    with pytest.raises(EngineError) as caught:
        rank.loop.run(lambda: False)
    assert "phase plan" in caught.value.__notes__[0]
