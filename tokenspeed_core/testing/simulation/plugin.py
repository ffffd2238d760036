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
    Refuse,
    Request,
    Round,
    SchedulerSettings,
    StorageTick,
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
        self.saboteur.may_raise("scheduler_events raises")
        self.events += [_shown(event) for event in round.scheduler_events]

    @hookimpl
    def round_done(self, round: Round) -> None:
        self.saboteur.may_raise("observer raises")

    # --- hooks that only fail --------------------------------------------------------------------

    @hookimpl
    def round_report(self, round: Round) -> bytes:
        self.saboteur.may_raise("round_report raises")
        return b""

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        self.saboteur.may_raise("validate_request raises")
        return None

    @hookimpl
    def request_aborted(self, round: Round) -> None:
        self.saboteur.may_raise("request_aborted raises")

    @hookimpl
    def refuse_weights(self, round: Round) -> str | None:
        self.saboteur.may_raise("refuse_weights raises")
        return None

    @hookimpl
    def cache_clearing(self, round: Round) -> bool:
        self.saboteur.may_raise("cache_clearing raises")
        return True

    @hookimpl
    def weights_loaded(self, round: Round) -> None:
        self.saboteur.may_raise("weights_loaded raises")

    @hookimpl
    def storage_tick(self, round: Round) -> StorageTick | None:
        self.saboteur.may_raise("storage_tick raises")
        return None

    @hookimpl
    def dispatch(self, round: Round) -> None:
        self.saboteur.may_raise("dispatch raises")

    @hookimpl
    def committed(self, round: Round) -> None:
        self.saboteur.may_raise("committed raises")

    @hookimpl
    def poll_events(self, round: Round) -> Sequence[object]:
        self.saboteur.may_raise("poll_events raises")
        return ()

    @hookimpl
    def drain_blocked(self, round: Round) -> bool:
        self.saboteur.may_raise("drain_blocked raises")
        return False

    @hookimpl
    def refuse_release(self, round: Round) -> str | None:
        self.saboteur.may_raise("refuse_release raises")
        return None

    @hookimpl
    def busy(self, round: Round) -> bool:
        self.saboteur.may_raise("busy raises")
        return False

    @hookimpl
    def request_finished(self, round: Round) -> None:
        self.saboteur.may_raise("request_finished raises")

    @hookimpl
    def iteration(self, round: Round) -> None:
        self.saboteur.may_raise("iteration raises")

    @hookimpl
    def forward_done(self, round: Round) -> None:
        self.saboteur.may_raise("forward_done raises")

    # --- the stage -------------------------------------------------------------------------------

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
