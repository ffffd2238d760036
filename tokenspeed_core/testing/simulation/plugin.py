# SPDX-License-Identifier: MIT
"""A simulated rank's plugin: it holds and ends requests, watches cache events, and may fail."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from tokenspeed_core.config.tables import option
from tokenspeed_core.testing.simulation.faults import Saboteur
from tokenspeed_hookspecs import (
    AdmissionStage,
    Engine,
    Hold,
    Pass,
    Plugin,
    Request,
    Round,
    SchedulerSettings,
    Verdict,
    hookimpl,
)


class Simulated(Plugin):
    """Holds a request for as many polls as its feature says; `due` are the ids it ends next,
    `holding` those it holds."""

    name = "simulated"
    features = ("polls",)

    @frozen
    class Options:
        """What it watches."""

        events: bool = option(False, "have the scheduler tell its cache events")

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self.saboteur = Saboteur(())
        self.due: list[str] = []
        self.events: list[str] = []
        self.holding: dict[str, None] = {}
        self._left: dict[str, int] = {}

    @hookimpl
    def configure_scheduler(self, settings: SchedulerSettings) -> None:
        if self.options.events:
            settings.native_options["enable_kv_cache_events"] = True

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [self]

    @hookimpl
    def planned(self, round: Round) -> None:
        self.saboteur.may_raise("participant raises")
        for request_id in self.due:
            self.engine.requests.abort(request_id, "ended by the engine")
        self.due = []

    @hookimpl
    def scheduler_events(self, round: Round) -> None:
        self.events += [_shown(event) for event in round.scheduler_events]

    @hookimpl
    def round_done(self, round: Round) -> None:
        self.saboteur.may_raise("observer raises")

    def enter(self, request: Request) -> Verdict:
        """Hold whoever is to be polled."""
        polls = request.features.get("polls", 0)
        assert isinstance(polls, int), f"polls: {polls!r}"
        if not polls:
            return Pass()
        self._left[request.request_id] = polls
        self.holding[request.request_id] = None
        return Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Count down."""
        self.saboteur.may_raise("stage raises")
        for each in held:
            self._left[each.request_id] -= 1
        return [int(self._left[each.request_id] <= 0) for each in held]

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let pass what was polled enough."""
        for each, code in zip(held, agreed, strict=True):
            if code:
                del self.holding[each.request_id]
        return [Pass() if code else Hold() for code in agreed]

    def leave(self, request_id: str) -> None:
        """Forget a request."""
        del self._left[request_id]
        del self.holding[request_id]


def _shown(event: object) -> str:
    """A native event by its type and plain fields, which are the same on every mirror."""
    names = [name for name in dir(event) if not name.startswith("_")]
    plain = {name: value for name in names if not callable(value := getattr(event, name))}
    return f"{type(event).__name__} {plain}"
