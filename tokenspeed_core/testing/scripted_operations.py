# SPDX-License-Identifier: MIT
"""What a scripted device is asked to do besides forwards, and how it answers."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from tokenspeed_hookspecs import ControlReply, ControlRequest

ANSWERS = {"profile": "Succeeded"}
APPLIED = "applied"


@define(eq=False)
class ScriptedOperations:
    """`done` records what was asked, in order: `release a,b`, `resume b,a`, `profile 1`, or the
    operation's name. `failures` maps operations to the message they fail with. `applied` names the
    operations that every rank could carry out."""

    regions: tuple[str, ...] = ("kv_cache", "weights")
    released: list[str] = field(factory=list)
    done: list[str] = field(factory=list)
    requests: list[ControlRequest] = field(factory=list)
    failures: dict[str, str] = field(factory=dict)
    applied: list[str] = field(factory=list)
    _ready: str | None = field(default=None, init=False)

    def release(self, regions: Sequence[str]) -> None:
        """Let go of regions. AssertionError for an unknown one, or one that is gone."""
        for region in regions:
            assert region in self.regions, f"no region {region!r}"
            assert region not in self.released, f"region {region!r} is released already"
        self.released += regions
        self.done.append(f"release {','.join(regions)}")

    def resume(self, regions: Sequence[str]) -> None:
        """Take regions back. AssertionError for one that was not released."""
        for region in regions:
            assert region in self.released, f"region {region!r} is not released"
            self.released.remove(region)
        self.done.append(f"resume {','.join(regions)}")

    def control(self, request: ControlRequest) -> ControlReply:
        """Succeed, or fail as scripted. AssertionError before the last one was settled."""
        assert self._ready is None, f"{request.name} came before {self._ready} was settled"
        self.requests.append(request)
        is_profile = request.name == "profile"
        told = f"profile {request.arguments.get('type')}" if is_profile else request.name
        self.done.append(told)
        failure = self.failures.get(request.name)
        message = failure if failure is not None else ANSWERS.get(request.name, APPLIED)
        if not is_profile:
            self._ready = request.name
        return ControlReply(request.name, failure is None, message)

    def settle(self, name: str, *, agreed: bool) -> None:
        """Apply what is ready or drop it. AssertionError: it is something else, or had failed."""
        assert name == self._ready, f"{name} is settled, {self._ready} is ready"
        assert not (agreed and name in self.failures), f"{name} failed, and is applied"
        self._ready = None
        if agreed:
            self.applied.append(name)

    def check_memory(self) -> None:
        """AssertionError while any region is gone: nothing may run then."""
        assert not self.released, f"a forward ran while memory was released: {self.released}"
