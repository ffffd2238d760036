# SPDX-License-Identifier: MIT
"""Where a rank's time goes: asked only where somebody watches, and free elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from tokenspeed_core.composition.participant_calls import Function, Implementations
from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_hookspecs import Instruments, Round

PHASE_BUCKETS = tuple(
    step * scale for scale in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0) for step in (1, 2, 5)
)


def timed(found: Implementations, instruments: Instruments) -> Implementations:
    """The same implementations, each of which records how long its calls take."""
    pairs = zip(found.plugins, found.functions, strict=True)
    functions = tuple(
        _timed(function, _plugin_seconds(instruments, plugin, hook=found.hook))
        for plugin, function in pairs
    )
    return Implementations(found.hook, found.plugins, functions)


def _plugin_seconds(instruments: Instruments, plugin: str, *, hook: str) -> Callable[[float], None]:
    return instruments.counter(
        "plugin_seconds",
        "Time inside each plugin's hooks, on the loop thread.",
        labels={"plugin": plugin, "hook": hook},
    ).add


def _timed(function: Function, record: Callable[[float], None]) -> Function:
    def call(round: Round) -> object:
        begin = perf_counter()
        try:
            return function(round)
        finally:
            record(perf_counter() - begin)

    return call


class WatchedLoop(EventLoop):
    """A loop that records how long each phase of its rounds takes.

    A phase lasts until the next one begins; the last one, until the round after it does.
    """

    def __init__(self, parts: LoopParts, instruments: Instruments) -> None:
        self._instruments = instruments
        # What comes before the first round is no part of any.
        self._record: dict[str, Callable[[float], None]] = {"": _ignore, "start": _ignore}
        self._phase, self._since = "", 0.0
        super().__init__(parts)

    @property
    def phase(self) -> str:
        """What the loop is doing."""
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        now = perf_counter()
        self._record[self._phase](now - self._since)
        if name not in self._record:
            self._record[name] = self._series(name)
        self._phase, self._since = name, now

    def _series(self, phase: str) -> Callable[[float], None]:
        return self._instruments.histogram(
            "round_seconds",
            "Time of each phase of a round; receive includes waiting for messages.",
            buckets=PHASE_BUCKETS,
            labels={"phase": phase},
        ).observe


def _ignore(seconds: float) -> None:
    """Time that belongs to no phase."""
