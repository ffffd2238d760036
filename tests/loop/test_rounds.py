# SPDX-License-Identifier: MIT
"""The phases of a round, seen through plugins defined here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import define, field

from tokenspeed_core.errors import EngineError, PluginError
from tokenspeed_core.testing import (
    EngineFixture,
    EngineSetup,
    ManualFrontend,
    Tiers,
    telling_tokens,
)
from tokenspeed_hookspecs import (
    AddRequest,
    AdmissionStage,
    ControlOperation,
    ControlReply,
    ControlRequest,
    GatedOperation,
    Hold,
    Load,
    OutputBatch,
    Pass,
    Plugin,
    Refuse,
    Request,
    Round,
    SamplingParams,
    Verdict,
    hookimpl,
)


@define
class Valve:
    """Holds every request until it is opened; refuses ids that begin with "bad"."""

    name: str = "valve"
    is_open: bool = False
    left: list[str] = field(factory=list)

    def enter(self, request: Request) -> Verdict:
        return Refuse("bad id", 418) if request.request_id.startswith("bad") else Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        return [int(self.is_open)] * len(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        return [Pass() if code else Hold() for code in agreed]

    def leave(self, request_id: str) -> None:
        self.left.append(request_id)


class ValvePlugin(Plugin):
    """Brings the valve, two control operations and a record of what it saw."""

    name = "valve"

    def __init__(self, options: object, engine: object) -> None:
        super().__init__(options, engine)  # type: ignore[arg-type]  # composition gives the right ones
        self.valve = Valve()
        self.aborted: list[str] = []
        self.finished: list[str] = []

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [self.valve]

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        return [
            ControlOperation("open", self._open),
            ControlOperation("open_gated", lambda _: GatedOperation(17, "open_gated", self._gated)),
        ]

    def _open(self, arguments: object) -> ControlReply:
        self.valve.is_open = True
        return ControlReply("open", success=True)

    def _gated(self) -> ControlReply:
        self.valve.is_open = True
        return ControlReply("open_gated", success=True)

    @hookimpl
    def request_aborted(self, round: Round) -> None:
        self.aborted += round.aborted

    @hookimpl
    def request_finished(self, round: Round) -> None:
        assert round.finished is not None
        self.finished.append(round.finished.request_id)


def engine_with(plugin: type[Plugin], **setup: object) -> tuple[EngineFixture, Plugin]:
    """An engine with one plugin, and the plugin's instance."""
    made: list[Plugin] = []

    class Kept(plugin):  # type: ignore[misc,valid-type]  # the class is chosen by the test
        def __init__(self, options: object, engine: object) -> None:
            super().__init__(options, engine)
            made.append(self)

    engine = EngineFixture(EngineSetup(plugins=(Kept,), **setup))  # type: ignore[arg-type]  # any of its fields
    return engine, made[0]


@pytest.mark.parametrize("operation", ["open", "open_gated"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_held_request_runs_once_its_stage_lets_it(operation: str, depth: int) -> None:
    """A stage holds a request for as long as it likes; a control operation may change its mind."""
    engine, _ = engine_with(ValvePlugin, depth=depth)
    engine.add("r", 5, budget=3)
    engine.rounds(5)
    assert not engine.received.ids()
    assert engine.plane.num_forwards == 0
    engine.put(ControlRequest(operation))
    (stream,) = engine.run_to_end("r")
    assert stream.tokens == telling_tokens(3)
    assert [reply.success for reply in engine.received.replies] == [True]
    engine.to_idle()


def test_a_refusal_of_a_stage_ends_that_request_alone() -> None:
    """A refused request gets its text and code; the one beside it runs."""
    engine, _ = engine_with(ValvePlugin)
    engine.add("bad-1", 5, budget=3)
    engine.add("good", 5, budget=3)
    engine.put(ControlRequest("open"))
    bad, good = engine.run_to_end("bad-1", "good")
    assert bad.finish is not None
    assert bad.finish.details() == {
        "type": "abort",
        "message": "bad id",
        "status_code": 418,
        "err_type": 522,
    }
    assert good.tokens == telling_tokens(3)
    engine.to_idle()


def test_an_abort_takes_a_held_request_out_of_its_stage() -> None:
    """The stage is told to forget it, the plugin hears of the abort, and no forward runs."""
    engine, plugin = engine_with(ValvePlugin)
    assert isinstance(plugin, ValvePlugin)
    engine.add("r", 5, budget=3)
    engine.rounds(2)
    engine.abort("r", "unknown")
    engine.to_idle()
    assert plugin.valve.left == ["r"]
    assert plugin.aborted == ["r", "unknown"]
    assert plugin.finished == ["r"]
    assert engine.plane.num_forwards == 0


def test_an_unknown_control_operation_is_answered_with_the_choices() -> None:
    """A control request nobody answers gets one failure that lists what there is."""
    engine, _ = engine_with(ValvePlugin)
    engine.put(ControlRequest("explode"))
    engine.round()
    (reply,) = engine.received.replies
    assert not reply.success
    assert "open, open_gated, pause" in reply.message


def test_a_control_acts_after_the_requests_that_came_before_it() -> None:
    """In one batch, what came before a freeze is in the scheduler, what came after is withheld."""
    engine = EngineFixture()
    engine.add("before", 5, budget=3)
    engine.put(ControlRequest("pause", {"mode": "keep"}))
    engine.add("after", 5, budget=3)
    engine.rounds(5)
    assert engine.loop.requests.ids() == ["before", "after"]
    assert engine.scheduler.sizes.waiting == 1
    assert engine.plane.num_forwards == 0
    engine.loop.controls.resume()
    before, after = engine.run_to_end("before", "after")
    assert before.tokens == after.tokens == telling_tokens(3)
    engine.to_idle()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_frozen_round_commits_and_acknowledges_but_forwards_nothing(depth: int) -> None:
    """A freeze lets cache work finish and plans no forward, whatever was in flight."""
    engine = EngineFixture(EngineSetup(depth=depth, tiers=Tiers.HOST))
    engine.add("r", 40, budget=30)
    engine.rounds(6)
    engine.loop.controls.pause("keep")
    engine.round()
    seen = engine.plane.num_forwards
    engine.rounds(10)
    assert engine.plane.num_forwards == seen
    assert not engine.loop.in_flight
    assert engine.loop.ledger.num_open == 0
    engine.loop.controls.resume()
    (stream,) = engine.run_to_end("r")
    assert stream.tokens == telling_tokens(30)
    engine.to_idle()


def test_an_abort_of_a_withheld_request_is_carried_out_at_the_thaw() -> None:
    """A withheld request that was aborted ends without a forward when admissions run again."""
    engine = EngineFixture()
    engine.loop.controls.pause("keep")
    engine.add("r", 5, budget=3)
    engine.round()
    engine.abort("r")
    engine.rounds(3)
    assert engine.loop.requests.ids() == ["r"]
    engine.loop.controls.resume()
    engine.to_idle()
    assert engine.plane.num_forwards == 0


class RaisingStage(Valve):
    """Raises when polled."""

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        raise ZeroDivisionError("oops")


class ShortStage(Valve):
    """Answers a poll with too few codes."""

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        return []


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (RaisingStage(), "stage 'valve' failed in poll: ZeroDivisionError: oops"),
        (ShortStage(), "to poll 1 held requests and got 0 values"),
    ],
)
def test_a_stage_that_breaks_its_contract_ends_the_engine_by_name(stage: Valve, text: str) -> None:
    """An exception in a stage, or a wrong count, names the stage."""

    class Broken(Plugin):
        """Brings the broken stage."""

        name = "broken"

        @hookimpl
        def admission_stages(self) -> Sequence[AdmissionStage]:
            return [stage]

    engine, _ = engine_with(Broken)
    engine.add("r", 5, budget=3)
    with pytest.raises(EngineError, match=text):
        engine.rounds(3)


@pytest.mark.parametrize("hook", ["planned", "dispatch", "committed", "poll_events"])
def test_a_broken_participant_stops_the_engine_and_is_named(hook: str) -> None:
    """A participant that raises ends the engine with its name, the hook and the round."""

    def broken(self: Plugin, round: Round) -> None:
        raise ValueError("no")

    spec = getattr(Plugin, hook)
    broken.__name__, broken.__annotations__ = hook, spec.__annotations__
    plugin = type("Broken", (Plugin,), {"name": "broken", hook: hookimpl(broken)})
    engine = EngineFixture(EngineSetup(plugins=(plugin,)))
    engine.add("r", 5, budget=3)
    with pytest.raises(PluginError, match=f"'broken' failed in hook {hook} of round"):
        engine.rounds(4)


class Refuser(Plugin):
    """Refuses prompts that begin with token 13, and asks for early commits."""

    name = "refuser"

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        assert round.candidate is not None
        return Refuse("unlucky", 400) if round.candidate.prompt_ids[0] == 13 else None

    @hookimpl
    def dispatch(self, round: Round) -> None:
        round.commit_first = True


def test_a_plugin_refuses_a_request_before_it_is_registered() -> None:
    """The refusal goes out with its code, and the data plane never learns of the request."""
    engine, _ = engine_with(Refuser)
    engine.put(AddRequest("r", [13, 1], SamplingParams(max_new_tokens=2)))
    (stream,) = engine.run_to_end("r")
    assert stream.finish is not None
    assert stream.finish.message == "unlucky"
    engine.to_idle()
    assert not engine.plane.released


def test_a_batch_may_ask_that_pending_forwards_commit_first() -> None:
    """With `commit_first`, depth 1 runs one forward at a time and the tokens stay the same."""
    engine, _ = engine_with(Refuser, depth=1)
    engine.add("r", 5, budget=4)
    while not (engine.received.ids() and engine.received["r"].finish):
        engine.round()
        assert len(engine.loop.in_flight) <= 1
    assert engine.received["r"].tokens == telling_tokens(4)
    engine.to_idle()


class KeepingFrontend(ManualFrontend):
    """Keeps the batches it was sent, as one that sends them from another thread does."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[OutputBatch] = []

    def send(self, outputs: OutputBatch, load: Load) -> None:
        """Keep the batch."""
        super().send(outputs, load)
        self.batches.append(outputs)


def test_a_batch_that_was_sent_is_never_written_to_again() -> None:
    """Also an empty one, after silent ends: the next round's chunks go into another."""
    frontend = KeepingFrontend()
    engine = EngineFixture(EngineSetup(frontend=frontend))
    for number in range(4):
        engine.add(f"gone{number}", 40, budget=100)
        engine.rounds(3)
        engine.abort(f"gone{number}")
        engine.rounds(3)
        engine.add(f"r{number}", 40, budget=5)
        engine.run_to_end(f"r{number}")
    engine.to_idle()
    assert len({id(batch) for batch in frontend.batches}) == len(frontend.batches)
    assert any(not batch.request_ids for batch in frontend.batches)


def test_an_end_that_is_told_to_nobody_still_reports_the_load() -> None:
    """A client that is gone gets no chunk; whoever routes learns that there is room again."""
    engine = EngineFixture()
    engine.add("gone", 40, budget=100)
    engine.add("stays", 40, budget=100)
    engine.rounds(4)
    engine.abort("gone", "stays")
    engine.to_idle()
    assert isinstance(engine.frontend, ManualFrontend)
    assert engine.frontend.loads[-1].running == 0
