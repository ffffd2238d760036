# SPDX-License-Identifier: MIT
"""Plugins that mistreat requests, controls, or the round they are shown."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import pytest

from tokenspeed_core.testing.conformance.checks import State, check_named
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_hookspecs import (
    AdmissionStage,
    ControlOperation,
    ControlReply,
    Engine,
    Hold,
    Pass,
    Plugin,
    Refuse,
    Request,
    Round,
    StorageTick,
    Verdict,
    hookimpl,
)


class Holding(Plugin):
    """Holds each request for two polls: right, and what the faults below are made from."""

    name = "holding"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.left: dict[str, int] = {}

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [self]

    def enter(self, request: Request) -> Verdict:
        """Hold."""
        self.left[request.request_id] = 2
        return Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Count down."""
        for each in held:
            self.left[each.request_id] -= 1
        return [int(self.left[each.request_id] <= 0) for each in held]

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let pass what waited long enough."""
        return [self._settled(each, code) for each, code in zip(held, agreed, strict=True)]

    def leave(self, request_id: str) -> None:
        """Forget one that ended."""
        del self.left[request_id]

    def _settled(self, request: Request, code: int) -> Verdict:
        if not code:
            return Hold()
        del self.left[request.request_id]
        return Pass()


class LosesAHeldRequest(Holding):
    """The third request is never let go."""

    name = "loses_a_held_request"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.count = 0

    def enter(self, request: Request) -> Verdict:
        self.count += 1
        self.left[request.request_id] = 10**9 if self.count == 3 else 2
        return Hold()


class ForgetsToForget(Holding):
    """One that leaves is still waited for, and an id that comes again is not."""

    name = "forgets_to_forget"

    def enter(self, request: Request) -> Verdict:
        if request.request_id in self.left:
            raise RuntimeError(f"{request.request_id} is here already")
        return super().enter(request)

    def leave(self, request_id: str) -> None:
        return None


class TripsOverAborts(Holding):
    """A request that left after it passed is not known any more."""

    name = "trips_over_aborts"

    @hookimpl
    def request_aborted(self, round: Round) -> None:
        for request_id in round.aborted:
            del self.left[request_id]


class SettlesTooFew(Holding):
    """A verdict is missing."""

    name = "settles_too_few"

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        return list(super().settle(held, agreed))[:1]


class KeepsRequests(Plugin):
    """Every request that ever was stays in memory."""

    name = "keeps_requests"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.seen: list[object] = []

    @hookimpl
    def planned(self, round: Round) -> None:
        self.seen += [self.engine.requests.get(each) for each in self.engine.requests.ids()]


class RaisesInCommit(Plugin):
    """Some forward is one too many."""

    name = "raises_in_commit"

    @hookimpl
    def committed(self, round: Round) -> None:
        if round.number > 3:
            raise ValueError("did not expect this")


class ReportsText(Plugin):
    """A report is bytes."""

    name = "reports_text"

    @hookimpl
    def round_report(self, round: Round) -> bytes:
        return "text"  # type: ignore[return-value]  # the fault that is planted


class ValidatesWithABool(Plugin):
    """A refusal has a text."""

    name = "validates_with_a_bool"

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        return False  # type: ignore[return-value]  # the fault that is planted


class AnswersTwice(Plugin):
    """An operation that replies by itself and returns the reply too."""

    name = "answers_twice"

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        return [ControlOperation("count", self.count)]

    def count(self, arguments: Mapping[str, object]) -> ControlReply:
        """Answer."""
        reply = ControlReply("count", success=True)
        self.engine.controls.reply(reply)  # type: ignore[attr-defined]  # reaches around
        return reply


class TripsOverArguments(Plugin):
    """An operator's typing error ends the engine."""

    name = "trips_over_arguments"

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        return [ControlOperation("place", self.place)]

    def place(self, arguments: Mapping[str, object]) -> ControlReply:
        """Answer."""
        return ControlReply("place", success=True, message=str(arguments["where"]))


class BlocksDrains(Plugin):
    """A pause is never answered."""

    name = "blocks_drains"

    @hookimpl
    def drain_blocked(self, round: Round) -> bool:
        return round.number > 10


class AlwaysBusy(Plugin):
    """The loop never waits for a message."""

    name = "always_busy"

    @hookimpl
    def busy(self, round: Round) -> bool:
        return True


class RefusesReleases(Plugin):
    """Memory can never be released."""

    name = "refuses_releases"

    @hookimpl
    def refuse_release(self, round: Round) -> str | None:
        return "not now"


class IgnoresTheFreeze(Plugin):
    """Its tick lets forwards run in frozen rounds."""

    name = "ignores_the_freeze"

    @hookimpl
    def storage_tick(self, round: Round) -> StorageTick | None:
        return StorageTick(now_us=round.number, allow_forward=True)


class WritesTheRound(Plugin):
    """The round is the core's."""

    name = "writes_the_round"

    @hookimpl
    def planned(self, round: Round) -> None:
        round.in_flight = 0
        round.num_outputs = 99


class ChangesTheBatch(Plugin):
    """So is the batch."""

    name = "changes_the_batch"

    @hookimpl
    def iteration(self, round: Round) -> None:
        if round.batch is not None:
            round.batch.input_lengths.reverse()


class Swallows(Plugin):
    """A wrapper that hides what other plugins raise."""

    name = "swallows"

    @hookimpl(wrapper=True)
    def planned(self, round: Round) -> Generator[None]:  # type: ignore[override]  # a wrapper
        try:
            yield
        except Exception:  # noqa:BLE001  # the fault that is planted
            return


FAULTS: dict[type[Plugin], tuple[str, str]] = {
    LosesAHeldRequest: ("traffic", "is held by its admission stage"),
    ForgetsToForget: ("aborts", "is here already"),
    TripsOverAborts: ("aborts", "failed in hook request_aborted"),
    SettlesTooFew: ("traffic", "must give one a request"),
    KeepsRequests: ("life", "ended requests are kept, the first in self.seen[0]"),
    RaisesInCommit: ("traffic", "failed in hook committed of round"),
    ReportsText: ("traffic", "round_report of round 1: TypeError: expected bytes"),
    ValidatesWithABool: ("traffic", "expected Refuse, got False"),
    AnswersTwice: ("operations", "were asked, ['count', 'count', 'count', 'count']"),
    TripsOverArguments: ("operations", "control operation 'place' failed"),
    BlocksDrains: ("pauses", "still drains though nothing runs; see drain_blocked"),
    AlwaysBusy: ("idle", "busy stays true though no request is left"),
    RefusesReleases: ("idle", "refuse_release refuses though no request is left"),
    IgnoresTheFreeze: ("pauses", "a forward ran in a frozen round"),
    WritesTheRound: ("traffic", "hook planned wrote round.num_outputs"),
    ChangesTheBatch: ("traffic", "hook iteration changed the batch"),
    Swallows: ("failures", "hides a failure of plugin 'zz_bystander'"),
}


@pytest.mark.parametrize("plugin", FAULTS, ids=lambda plugin: str(plugin.__name__))
def test_a_fault_is_found_and_named(plugin: type[Plugin]) -> None:
    """The check that the fault belongs to fails, and a message names it."""
    name, text = FAULTS[plugin]
    outcome = check_named(name).run(Subject(plugin=plugin, patience_s=0.3))
    assert outcome.state is State.FAILED
    assert text in "\n".join(outcome.problems)
