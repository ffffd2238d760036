# SPDX-License-Identifier: MIT
"""What two mirrored ranks are told to do, what they tell of it, and the traffic they see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from tokenspeed_core.testing.conformance.running import made
from tokenspeed_core.testing.conformance.subject import Address, Features
from tokenspeed_hookspecs import (
    AbortRequests,
    AdmissionStage,
    ControlRequest,
    Hold,
    Message,
    Pass,
    Plugin,
    Request,
    Round,
    Verdict,
    hookimpl,
)

CONTROLS: Sequence[tuple[int, str, Mapping[str, object]]] = (
    (14, "pause", {"mode": "keep"}),
    (18, "resume", {}),
    (26, "pause", {"mode": "abort"}),
    (29, "resume", {}),
    (39, "flush_cache", {}),
)
CALM_ROUND = 40  # after the last message of the traffic


@frozen
class MirrorJob:
    """One plugin to run on both ranks; with `is_silenced` rank 1 calls none of its observers."""

    address: Address
    options: Mapping[str, Any]
    features: Sequence[Features]
    patience_s: float = 3.0
    is_silenced: bool = False


@frozen
class HookCall:
    """One hook call of a rank: seconds that it waited, and that it computed."""

    hook: str
    round: int
    waited_s: float
    cpu_s: float


@frozen
class MirrorResult:
    """What a rank tells: a map of facts a round, its calls, and what it saw go wrong."""

    rounds: Sequence[Mapping[str, str]] = ()
    calls: Sequence[HookCall] = ()
    problems: Sequence[str] = ()
    error: str = ""
    is_parted: bool = False  # the error is that the other rank is not in step, or gone


class Companion(Plugin):
    """Another plugin beside the one under test, so that there is an order to get wrong."""

    name = "companion"

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [OnePoll()]

    @hookimpl
    def round_report(self, round: Round) -> bytes:
        return b"here"

    @hookimpl
    def planned(self, round: Round) -> None:
        return None


class OnePoll:
    """Holds each request for one poll."""

    name = "one_poll"

    def enter(self, request: Request) -> Verdict:
        """Hold."""
        return Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Everything is ready."""
        return [1] * len(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let everything pass that all ranks have."""
        return [Pass() if code else Hold() for code in agreed]

    def leave(self, request_id: str) -> None:
        """Nothing is kept."""


@frozen
class Traffic:
    """Messages by round: arrivals of every kind, aborts, pauses and a flush."""

    by_round: Mapping[int, Sequence[Message]] = field(factory=dict)

    @classmethod
    def of(cls, kinds: Sequence[Features]) -> Traffic:
        """Twelve requests and more, each kind among those that are aborted."""
        plan: dict[int, list[Message]] = {}
        for number in range(max(12, 3 * len(kinds))):
            kind, at = kinds[(number // 3) % len(kinds)], 1 + number * 3 // 2
            name = f"request-{number}"
            plan.setdefault(at, []).append(made(name, kind, budget=2 + number % 6))
            if number % 3 == 1:
                plan.setdefault(at + number % 5, []).append(AbortRequests((name,)))
        for at, name, arguments in CONTROLS:
            plan.setdefault(at, []).append(ControlRequest(name, arguments))
        plan.setdefault(32, []).extend(made(f"late-{at}", kind) for at, kind in enumerate(kinds))
        return cls(plan)

    def due(self, number: int) -> Sequence[Message]:
        """What comes in this round."""
        return self.by_round.get(number, ())
