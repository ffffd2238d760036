# SPDX-License-Identifier: MIT
"""Faults at every port: what each does, and what an engine may make of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from attrs import define, field, frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_hookspecs import CacheAcknowledgment


class PlantedError(RuntimeError):
    """What a fault raises."""


class Harm(Enum):
    """What must come of a fault."""

    NONE = "none"  # every request comes to its end as without it
    END = "end"  # every rank ends with an error, in the round of the fault or the next
    EITHER = "either"  # an error, or all as without it; never another answer
    STANDSTILL = "standstill"  # what it broke may wait for ever; nothing else goes wrong


HARMS = {
    "complete raises": Harm.END,
    "execute raises": Harm.END,
    "poll raises": Harm.END,
    "send raises": Harm.END,
    "receive raises": Harm.END,
    "admit raises": Harm.END,
    "release raises": Harm.END,
    "acknowledgment late": Harm.NONE,
    "acknowledgment lost": Harm.STANDSTILL,
    "acknowledgment doubled": Harm.END,
    "result short": Harm.EITHER,
    "participant raises": Harm.END,
    "observer raises": Harm.NONE,
    "stage raises": Harm.END,
    "clock jumps": Harm.NONE,
    "payload lost": Harm.END,
    "payload doubled": Harm.EITHER,
    "payload garbled": Harm.END,
    "rank gone": Harm.END,
}
# Hooks that a simulated rank's plugin has besides those of "participant" and "observer".
PARTICIPANTS = (
    "round_report",
    "validate_request",
    "request_aborted",
    "refuse_weights",
    "cache_clearing",
    "weights_loaded",
    "storage_tick",
    "dispatch",
    "committed",
    "poll_events",
    "scheduler_events",
    "drain_blocked",
    "refuse_release",
    "busy",
)
OBSERVERS = ("request_finished", "iteration", "forward_done")
# What is called of the ports besides what `HARMS` has.
PLANE_CALLS = ("idle_forward", "release_memory", "resume_memory", "control", "settle")
SCHEDULER_CALLS = ("submit", "advance_head", "plan", "commit", "advance", "drain_events")
# Drawn apart from those above, so that what a seed stood for before them stays as it was.
MORE_HARMS = {
    **{f"{name} raises": Harm.END for name in (*PARTICIPANTS, *PLANE_CALLS, *SCHEDULER_CALLS)},
    **{f"{name} raises": Harm.NONE for name in OBSERVERS},
    "reply raises": Harm.END,
    "complete slow": Harm.NONE,
    "execute slow": Harm.NONE,
    "payload slow": Harm.NONE,
}
OF_MESH = ("payload lost", "payload doubled", "payload garbled", "rank gone")
LATE_ROUNDS = 5
MORE = 0.3  # of the plans without faults


@frozen
class Fault:
    """One fault: its kind, the rank it is on, and the number of the call it comes with."""

    kind: str
    rank: int
    nth: int

    @property
    def harm(self) -> Harm:
        """What must come of it."""
        return MORE_HARMS[self.kind] if self.kind in MORE_HARMS else HARMS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind} on rank {self.rank}, call {self.nth} ({self.harm.value})"


def draw_faults(rng: random.Random, world_size: int) -> list[Fault]:
    """One fault that ends an engine, or some that do not."""
    kinds = [kind for kind in HARMS if world_size > 1 or kind not in OF_MESH]
    harmless = [kind for kind in kinds if HARMS[kind] is Harm.NONE]
    if rng.random() < 0.5:
        chosen = [rng.choice(harmless) for _ in range(rng.randint(1, 4))]
    else:
        chosen = [rng.choice(kinds)]
    return [Fault(kind, rng.randrange(world_size), rng.randint(1, 40)) for kind in chosen]


def draw_more(rng: random.Random, world_size: int) -> list[Fault]:
    """Perhaps a fault of the rarer calls, mostly with one of the first."""
    if rng.random() > MORE:
        return []
    nth = rng.randint(1, 40) if rng.random() < 0.5 else rng.randint(1, 3)
    return [Fault(rng.choice(list(MORE_HARMS)), rng.randrange(world_size), nth)]


@define(eq=False)
class Saboteur:
    """A rank's faults. `call(kind)` counts a call, and says whether one comes with it."""

    faults: Sequence[Fault]
    fired: list[Fault] = field(factory=list)
    gone: str = ""  # why another rank ended; the device answers nothing from then on
    dawdle: Callable[[], None] = lambda: None  # let much time pass
    _counts: dict[str, int] = field(factory=dict)

    def arm(self, faults: Sequence[Fault]) -> None:
        """Begin to count calls, for these faults."""
        self.faults = faults
        self._counts.clear()

    def strikes(self, kind: str) -> bool:
        """Count a call that faults of this kind may come with."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        for fault in self.faults:
            if fault.kind == kind and fault.nth == count:
                self.fired.append(fault)
                return True
        return False

    def may_raise(self, kind: str) -> None:
        """PlantedError if a fault of this kind comes now."""
        if self.strikes(kind):
            raise PlantedError(kind)

    def may_dawdle(self, kind: str) -> None:
        """Let much time pass if a fault of this kind comes now."""
        if self.strikes(kind):
            self.dawdle()

    def hear(self, reason: str) -> None:
        """Another rank has ended."""
        self.gone = self.gone or reason

    def _must_live(self) -> None:
        if self.gone:
            raise EngineError(self.gone)

    def stand_between(self, parts: LoopParts) -> None:
        """Put the faults of device, scheduler and clients into a loop's ports."""
        parts.data_plane = FaultyPort(parts.data_plane, self._plane_calls(parts.data_plane))
        scheduler = parts.scheduler
        parts.scheduler = FaultyPort(scheduler, self._all_raising(scheduler, SCHEDULER_CALLS))
        if parts.frontend is not None:
            frontend = parts.frontend
            parts.frontend = FaultyPort(
                frontend,
                {
                    "receive": self._raising("receive", frontend.receive),
                    "send": self._raising("send", frontend.send),
                    "reply": self._raising("reply", frontend.reply),
                },
            )

    def _plane_calls(self, plane: Any) -> dict[str, Callable[..., Any]]:
        late: list[tuple[int, CacheAcknowledgment]] = []

        def poll() -> list[CacheAcknowledgment]:
            self._must_live()
            self.may_raise("poll raises")
            done = list(plane.poll_cache_operations())
            if not done:
                pass
            elif self.strikes("acknowledgment late"):
                late.extend((LATE_ROUNDS, each) for each in done)
                done = []
            elif self.strikes("acknowledgment lost"):
                done = done[1:]
            elif self.strikes("acknowledgment doubled"):
                done = [*done, done[0]]
            waiting = [(rounds - 1, each) for rounds, each in late]
            late[:] = [pair for pair in waiting if pair[0] > 0]
            return done + [each for rounds, each in waiting if rounds <= 0]

        def complete(pending: Any) -> Any:
            self._must_live()
            self.may_raise("complete raises")
            self.may_dawdle("complete slow")
            result = plane.complete(pending)
            if self.strikes("result short"):
                result.tokens = [int(token) for token in result.tokens][:-1]
            return result

        def execute(plan: Any, dispatch: Any) -> Any:
            self._must_live()
            self.may_raise("execute raises")
            self.may_dawdle("execute slow")
            return plane.execute(plan, dispatch)

        return {
            **self._all_raising(plane, PLANE_CALLS),
            "poll_cache_operations": poll,
            "complete": complete,
            "execute": execute,
            "admit": self._raising("admit", plane.admit),
            "release": self._raising("release", plane.release),
        }

    def _all_raising(self, port: Any, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
        return {name: self._raising(name, getattr(port, name)) for name in names}

    def _raising(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if name not in {"receive", "send", "reply"}:
                self._must_live()
            self.may_raise(f"{name} raises")
            return call(*arguments, **named)

        return called


class FaultyPort:
    """A port with some of its calls replaced; the rest is the port's own."""

    def __init__(self, port: Any, calls: dict[str, Callable[..., Any]]) -> None:
        self._port = port
        self._calls = calls

    def __getattr__(self, name: str) -> Any:  # boundary: any port
        if name in self._calls:
            return self._calls[name]
        return getattr(self._port, name)
