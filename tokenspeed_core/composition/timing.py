# SPDX-License-Identifier: MIT
"""Where a rank's time goes: asked only where somebody keeps it, and free elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from attrs import field, frozen

from tokenspeed_core.composition.participant_calls import Function, Implementations
from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_hookspecs import (
    AdmissionStage,
    Instruments,
    Request,
    Round,
    Timekeeper,
    Verdict,
)

PHASE_BUCKETS = tuple(
    step * scale for scale in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0) for step in (1, 2, 5)
)
Span = Callable[[float, float], None]


@frozen
class InstrumentedTime:
    """Keeps time in the rank's instruments."""

    instruments: Instruments
    _observe: dict[str, Callable[[float], None]] = field(factory=dict, init=False)

    def round(self, phases: Sequence[str], times: Sequence[float]) -> None:
        """A histogram a phase."""
        observe, ends = self._observe, iter(times)
        begin = next(ends)
        for phase, end in zip(phases, ends, strict=True):
            if phase not in observe:
                observe[phase] = self._histogram(phase)
            observe[phase](end - begin)
            begin = end

    def call(self, plugin: str, hook: str) -> Span:
        """A counter a plugin and hook."""
        add = self.instruments.counter(
            "plugin_seconds",
            "Time inside each plugin's hooks, on the loop thread.",
            labels={"plugin": plugin, "hook": hook},
        ).add
        return lambda begin, end: add(end - begin)

    def _histogram(self, phase: str) -> Callable[[float], None]:
        return self.instruments.histogram(
            "round_seconds",
            "Time of each phase of a round; receive includes waiting for messages.",
            buckets=PHASE_BUCKETS,
            labels={"phase": phase},
        ).observe


def timed(found: Implementations, keepers: Sequence[Timekeeper]) -> Implementations:
    """The same implementations, each of which tells every keeper how long its calls take."""
    functions = tuple(
        _timed(function, _together([keeper.call(plugin, found.hook) for keeper in keepers]))
        for plugin, function in zip(found.plugins, found.functions, strict=True)
    )
    return Implementations(found.hook, found.plugins, functions)


def _timed(function: Function, tell: Span) -> Function:
    def call(round: Round) -> object:
        begin = perf_counter()
        try:
            return function(round)
        finally:
            tell(begin, perf_counter())

    return call


class TimedStage:
    """A stage that tells how long its calls take."""

    def __init__(
        self, stage: AdmissionStage, plugin: str, *, keepers: Sequence[Timekeeper]
    ) -> None:
        self.stage = stage
        self._enter, self._poll, self._settle, self._leave = (
            _together([keeper.call(plugin, f"{stage.name}.{verb}") for keeper in keepers])
            for verb in ("enter", "poll", "settle", "leave")
        )

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    def enter(self, request: Request) -> Verdict:
        """Let the stage decide."""
        with _told(self._enter):
            return self.stage.enter(request)

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Let the stage look."""
        with _told(self._poll):
            return self.stage.poll(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let the stage decide."""
        with _told(self._settle):
            return self.stage.settle(held, agreed)

    def leave(self, request_id: str) -> None:
        """Let the stage forget."""
        with _told(self._leave):
            self.stage.leave(request_id)


@contextmanager
def _told(tell: Span) -> Iterator[None]:
    begin = perf_counter()
    try:
        yield
    finally:
        tell(begin, perf_counter())


class WatchedLoop(EventLoop):
    """A loop that tells how long each phase of its rounds takes.

    A phase lasts until the next one begins, or the round ends. Until then phases are only noted:
    whoever is told each time finds its memory cold.
    """

    def __init__(self, parts: LoopParts, keepers: Sequence[Timekeeper]) -> None:
        self._keepers = keepers
        self._phase = ""
        self._forget()
        super().__init__(parts)
        self._forget()  # what comes before the first round is no part of any

    @property
    def phase(self) -> str:
        """What the loop is doing."""
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name
        self._phases.append(name)
        self._times.append(perf_counter())

    def round(self, stop_requested: bool = False) -> bool:
        """Run one round, and tell of it."""
        is_last = super().round(stop_requested)
        self._times.append(perf_counter())
        for keeper in self._keepers:
            keeper.round(self._phases, self._times)
        self._forget()
        return is_last

    def _forget(self) -> None:
        self._phases: list[str] = []
        self._times: list[float] = []


def _together(spans: Sequence[Span]) -> Span:
    """One span that tells all of these."""
    if len(spans) == 1:
        return spans[0]

    def tell(begin: float, end: float) -> None:
        for span in spans:
            span(begin, end)

    return tell
