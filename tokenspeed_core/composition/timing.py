# SPDX-License-Identifier: MIT
"""Where a rank's time goes: asked only where somebody keeps it, and free elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter

from tokenspeed_core.composition.participant_calls import Function, Implementations
from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_hookspecs import (
    AdmissionStage,
    Instruments,
    Request,
    Round,
    RoundTimes,
    Timekeeper,
    Verdict,
)
from tokenspeed_hookspecs.instruments import Call

PHASE_BUCKETS = tuple(
    step * scale for scale in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0) for step in (1, 2, 5)
)
MOST_WAITING = 1 << 14  # rounds; with nobody who reads, the oldest go
Calls = list[Call]


class InstrumentedTime:
    """Keeps time in the rank's instruments; a round only leaves its times in a queue."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._phases: dict[str, Callable[[float], None]] = {}
        self._calls: dict[tuple[str, str], Callable[[float], None]] = {}
        self._waiting: deque[RoundTimes] = deque(maxlen=MOST_WAITING)
        self.take: Timekeeper = self._waiting.append
        instruments.before_reading(self._settle)

    def _settle(self) -> None:
        for _ in range(len(self._waiting)):
            times = self._waiting.popleft()
            for phase, (begin, end) in zip(times.phases, pairwise(times.begins), strict=True):
                if phase not in self._phases:
                    self._phases[phase] = self._histogram(phase)
                self._phases[phase](end - begin)
            for plugin, hook, begin, end in times.calls:
                if (plugin, hook) not in self._calls:
                    self._calls[plugin, hook] = self._counter(plugin, hook)
                self._calls[plugin, hook](end - begin)

    def _histogram(self, phase: str) -> Callable[[float], None]:
        return self._instruments.histogram(
            "round_seconds",
            "Time of each phase of a round; receive includes waiting for messages.",
            buckets=PHASE_BUCKETS,
            labels={"phase": phase},
        ).observe

    def _counter(self, plugin: str, hook: str) -> Callable[[float], None]:
        return self._instruments.counter(
            "plugin_seconds",
            "Time inside each plugin's hooks, on the loop thread.",
            labels={"plugin": plugin, "hook": hook},
        ).add


def timed(found: Implementations, calls: Calls) -> Implementations:
    """The same implementations, each of whose calls is noted."""
    functions = tuple(
        _timed(function, calls, plugin=plugin, hook=found.hook)
        for plugin, function in zip(found.plugins, found.functions, strict=True)
    )
    return Implementations(found.hook, found.plugins, functions)


def _timed(function: Function, calls: Calls, *, plugin: str, hook: str) -> Function:
    def call(round: Round) -> object:
        begin = perf_counter()
        try:
            return function(round)
        finally:
            calls.append((plugin, hook, begin, perf_counter()))

    return call


class TimedStage:
    """A stage whose calls are noted."""

    def __init__(self, stage: AdmissionStage, plugin: str, *, calls: Calls) -> None:
        self.stage = stage
        self._plugin, self._calls = plugin, calls

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    def enter(self, request: Request) -> Verdict:
        """Let the stage decide."""
        with self._noted("enter"):
            return self.stage.enter(request)

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Let the stage look."""
        with self._noted("poll"):
            return self.stage.poll(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let the stage decide."""
        with self._noted("settle"):
            return self.stage.settle(held, agreed)

    def leave(self, request_id: str) -> None:
        """Let the stage forget."""
        with self._noted("leave"):
            self.stage.leave(request_id)

    @contextmanager
    def _noted(self, verb: str) -> Iterator[None]:
        begin = perf_counter()
        try:
            yield
        finally:
            self._calls.append((self._plugin, f"{self.name}.{verb}", begin, perf_counter()))


class WatchedLoop(EventLoop):
    """A loop that tells where the time of its rounds goes.

    A phase lasts until the next one begins, or the round ends. Until then all is only noted, for
    whoever is told in the middle of a round finds its memory cold.
    """

    def __init__(self, parts: LoopParts, keepers: Sequence[Timekeeper], *, calls: Calls) -> None:
        super().__init__(parts)
        self._keepers, self._calls = keepers, calls
        self._begins: list[float] = []
        self.phases = list(self.phases)
        self._enter = _noting(self.phases, self._begins)

    def round(self, stop_requested: bool = False) -> bool:
        """Run one round, and tell of it."""
        phases, begins, calls = self.phases, self._begins, self._calls
        del phases[:-1]  # another thread may ask for the last one at any time
        begins.clear()
        calls.clear()
        is_last = super().round(stop_requested)
        begins.append(perf_counter())
        times = RoundTimes(phases[1:], begins[:], calls[:])
        for tell in self._keepers:
            tell(times)
        return is_last


def _noting(phases: MutableSequence[str], begins: list[float]) -> Callable[[str], None]:
    """A function that is called a dozen times a round: it holds what it needs and no object."""
    note, note_time = phases.append, begins.append

    def enter(name: str) -> None:
        note(name)
        note_time(perf_counter())

    return enter
