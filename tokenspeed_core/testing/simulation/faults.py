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
OF_MESH = ("payload lost", "payload doubled", "payload garbled", "rank gone")
LATE_ROUNDS = 5


@frozen
class Fault:
    """One fault: its kind, the rank it is on, and the number of the call it comes with."""

    kind: str
    rank: int
    nth: int

    @property
    def harm(self) -> Harm:
        """What must come of it."""
        return HARMS[self.kind]

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


@define(eq=False)
class Saboteur:
    """A rank's faults. `call(kind)` counts a call, and says whether one comes with it."""

    faults: Sequence[Fault]
    fired: list[Fault] = field(factory=list)
    gone: str = ""  # why another rank ended; the device answers nothing from then on
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

    def hear(self, reason: str) -> None:
        """Another rank has ended."""
        self.gone = self.gone or reason

    def _must_live(self) -> None:
        if self.gone:
            raise EngineError(self.gone)

    def stand_between(self, parts: LoopParts) -> None:
        """Put the faults of device, clients and clock into a loop's ports."""
        parts.data_plane = FaultyPort(parts.data_plane, self._plane_calls(parts.data_plane))
        if parts.frontend is not None:
            frontend = parts.frontend
            parts.frontend = FaultyPort(
                frontend,
                {
                    "receive": self._raising("receive", frontend.receive),
                    "send": self._raising("send", frontend.send),
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
            result = plane.complete(pending)
            if self.strikes("result short"):
                result.tokens = [int(token) for token in result.tokens][:-1]
            return result

        return {
            "poll_cache_operations": poll,
            "complete": complete,
            "execute": self._raising("execute", plane.execute),
            "admit": self._raising("admit", plane.admit),
            "release": self._raising("release", plane.release),
        }

    def _raising(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if name not in {"receive", "send"}:
                self._must_live()
            self.may_raise(f"{name} raises")
            return call(*arguments)

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
