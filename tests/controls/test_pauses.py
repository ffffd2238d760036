# SPDX-License-Identifier: MIT
"""What a pause, a release and their ends do to the requests around them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tokenspeed_core.loop.event_loop import HELD_WAIT_S, IDLE_WAIT_S
from tokenspeed_core.testing import (
    EngineFixture,
    EngineSetup,
    Tiers,
    scripted_engine,
    telling_tokens,
)
from tokenspeed_hookspecs import (
    AdmissionStage,
    ControlOperation,
    ControlReply,
    ControlRequest,
    GatedOperation,
    Hold,
    Message,
    Plugin,
    Request,
    Round,
    Verdict,
    hookimpl,
)

every_depth = pytest.mark.parametrize("depth", [0, 1, 2])


def pause(mode: str) -> ControlRequest:
    """A pause in this mode."""
    return ControlRequest("pause", {"mode": mode})


def told(engine: EngineFixture) -> list[tuple[str, bool]]:
    """The replies so far."""
    return [(reply.name, reply.success) for reply in engine.received.replies]


@every_depth
def test_an_abort_pause_ends_what_runs_and_says_why(depth: int) -> None:
    """Running and waiting requests end with the text, ahead of the pause's reply."""
    engine = scripted_engine(depth=depth)
    for index in range(12):
        engine.add(f"r{index}", 5, budget=1000)
    engine.rounds(5)
    engine.put(pause("abort"))
    engine.run_until(lambda: engine.received.replies)
    finishes = [engine.received[f"r{index}"].finish for index in range(12)]
    assert {finish.message for finish in finishes if finish} == {"Aborted by pause"}
    assert all(finishes)
    assert told(engine) == [("pause", True)]
    engine.put(ControlRequest("resume"))
    engine.to_idle()


def test_a_request_behind_an_abort_pause_in_its_batch_ends_at_the_resume() -> None:
    """It is registered before the sweep, so the sweep marks it, but a pause withholds it."""
    engine = scripted_engine()
    engine.put(pause("abort"))
    engine.add("same", 5, budget=3)
    engine.rounds(2)
    engine.add("later", 5, budget=3)
    engine.rounds(3)
    assert engine.loop.requests.ids() == ["same", "later"]
    engine.put(ControlRequest("resume"))
    same, later = engine.run_to_end("same", "later")
    assert (same.kind, same.tokens) == ("abort", [])
    assert later.tokens == telling_tokens(3)
    engine.to_idle()


def test_a_request_ahead_of_a_wait_pause_in_its_batch_still_runs() -> None:
    """A pause acts after the requests that came before it."""
    engine = scripted_engine()
    engine.add("before", 5, budget=3)
    engine.put(pause("wait"))
    engine.add("after", 5, budget=3)
    engine.run_until(lambda: engine.received.replies)
    assert engine.received["before"].tokens == telling_tokens(3)
    assert not engine.received["after"].chunks
    engine.put(ControlRequest("resume"))
    engine.run_to_end("after")
    engine.to_idle()


def test_an_engine_with_only_withheld_requests_waits_for_messages() -> None:
    """A paused engine does not spin: nothing but a message can give it work."""
    engine = scripted_engine()
    engine.put(pause("wait"))
    engine.add("later", 5, budget=3)
    engine.rounds(3)
    assert engine.loop._wait(Round(0)) == IDLE_WAIT_S
    engine.put(ControlRequest("resume"))
    engine.run_to_end("later")
    engine.to_idle()


class Holding:
    """Holds every request for ever."""

    name = "holding"

    def enter(self, request: Request) -> Verdict:
        return Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        return [0] * len(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        return [Hold()] * len(held)

    def leave(self, request_id: str) -> None:
        """Nothing is kept."""


class HoldingPlugin(Plugin):
    """Holds requests; holds up drains and refuses releases as told; brings a gated operation."""

    name = "holding"
    blocks = False
    refuses: str | None = None

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [Holding()]

    @hookimpl
    def drain_blocked(self, round: Round) -> bool:
        return self.blocks

    @hookimpl
    def refuse_release(self, round: Round) -> str | None:
        return self.refuses

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        return [ControlOperation("swap", lambda _: GatedOperation(17, "swap", self._swap))]

    def _swap(self) -> ControlReply:
        return ControlReply("swap", success=True)


def holding_engine() -> tuple[EngineFixture, HoldingPlugin]:
    """An engine with the plugin, and its instance."""
    engine = EngineFixture(EngineSetup(plugins=(HoldingPlugin,)))
    (plugin,) = [each.instance for each in engine.rank.plugins]
    assert isinstance(plugin, HoldingPlugin)
    return engine, plugin


@pytest.mark.parametrize("drain", [pause("wait"), ControlRequest("release_memory")])
def test_a_drain_cancels_what_no_stage_let_through(drain: ControlRequest) -> None:
    """A held request ends in the round of the drain, before its reply, without a token."""
    engine, _ = holding_engine()
    engine.add("cold", 5, budget=3)
    engine.rounds(3)
    engine.put(drain)
    engine.round()
    stream = engine.received["cold"]
    assert stream.finish is not None
    assert (stream.tokens, stream.finish.message) == ([], "Aborted by pause")
    assert told(engine) == [(drain.name, True)]


def test_an_engine_that_only_holds_requests_does_not_spin() -> None:
    """It looks again a thousand times a second, and lets those run who work for what it holds."""
    engine, _ = holding_engine()
    engine.add("cold", 5, budget=3)
    engine.rounds(3)
    assert engine.loop._wait(Round(0)) == HELD_WAIT_S
    engine.abort("cold")
    engine.rounds(3)
    assert engine.loop._wait(Round(0)) == IDLE_WAIT_S


def test_a_keep_pause_cancels_nothing() -> None:
    """A held request stays held through a freeze."""
    engine, _ = holding_engine()
    engine.add("cold", 5, budget=3)
    engine.put(pause("keep"))
    engine.rounds(3)
    assert told(engine) == [("pause", True)]
    assert engine.loop.requests.ids() == ["cold"]


def test_a_plugin_holds_up_a_drain() -> None:
    """A drain answers once no plugin has anything left to settle."""
    engine, plugin = holding_engine()
    plugin.blocks = True
    engine.put(pause("wait"))
    engine.rounds(5)
    assert told(engine) == []
    plugin.blocks = False
    engine.round()
    assert told(engine) == [("pause", True)]


def test_a_plugin_refuses_a_release() -> None:
    """The text of the plugin is the reply, and nothing is drained."""
    engine, plugin = holding_engine()
    plugin.refuses = "a swap is in progress"
    engine.put(ControlRequest("release_memory"))
    engine.round()
    (reply,) = engine.received.replies
    assert (reply.success, reply.message) == (False, "a swap is in progress")
    assert not engine.loop.controls.admissions_blocked


def test_a_gated_operation_runs_before_a_release_does() -> None:
    """It may write what the release frees, so the release waits for it."""
    engine, _ = holding_engine()
    engine.put(*[ControlRequest("swap")] * 3, ControlRequest("release_memory"))
    engine.run_until(lambda: len(engine.received.replies) == 4)
    assert [name for name, _ in told(engine)] == ["swap"] * 3 + ["release_memory"]


def test_two_regions_resumed_one_by_one_run_only_after_the_last() -> None:
    """With one region back the engine still sleeps, and a request waits."""
    engine = scripted_engine()
    engine.put(ControlRequest("release_memory"))
    engine.round()
    engine.put(ControlRequest("resume_memory", {"tags": ["weights"]}))
    engine.add("r", 5, budget=3)
    engine.rounds(10)
    assert engine.loop.controls.released == ("kv_cache",)
    assert not engine.received["r"].chunks
    engine.put(ControlRequest("update_weights_from_disk", {"model_path": "m"}))
    engine.round()
    engine.put(ControlRequest("resume_memory", {"tags": ["kv_cache"]}))
    (stream,) = engine.run_to_end("r")
    assert stream.tokens == telling_tokens(3)
    assert told(engine)[2] == ("update_weights_from_disk", True)
    engine.to_idle()


def test_regions_are_released_in_order_and_resumed_in_reverse() -> None:
    """Whatever the order a request names them in."""
    engine = scripted_engine()
    engine.put(ControlRequest("release_memory", {"tags": ["weights", "kv_cache", "weights"]}))
    engine.round()
    engine.put(ControlRequest("resume_memory", {"tags": ["kv_cache", "weights"]}))
    engine.round()
    assert engine.plane.asked.done == ["release kv_cache,weights", "resume weights,kv_cache"]
    assert told(engine) == [("release_memory", True), ("resume_memory", True)]


def test_a_release_leaves_no_prefix_to_hit() -> None:
    """A released cache forgets its index, so a later prompt is computed anew."""
    engine = scripted_engine()
    engine.add("first", 64, budget=3)
    engine.run_to_end("first")
    engine.put(ControlRequest("release_memory"))
    engine.run_until(lambda: engine.received.replies)
    engine.put(ControlRequest("resume_memory"))
    engine.add("second", 64, budget=3)
    (stream,) = engine.run_to_end("second")
    assert stream.chunks[-1].cached_tokens == 0
    engine.to_idle()


@every_depth
@pytest.mark.parametrize("tiers", [Tiers.DEVICE_ONLY, Tiers.HOST, Tiers.FORCED_RETRACTION])
def test_a_release_completes_after_any_traffic(depth: int, tiers: Tiers) -> None:
    """Late rows, chunked prompts, write-backs and retractions leave no page pinned."""
    engine = scripted_engine(depth=depth, tiers=tiers)
    for index, size in enumerate((5, 522, 40, 300)):
        engine.add(f"r{index}", size, budget=6)
    engine.rounds(4)
    engine.put(ControlRequest("release_memory"))
    engine.run_until(lambda: engine.received.replies, max_rounds=300)
    assert told(engine) == [("release_memory", True)]
    engine.put(ControlRequest("resume_memory"))
    engine.add("after", 522, budget=3)
    (stream,) = engine.run_to_end("after")
    assert stream.tokens == telling_tokens(3)
    engine.to_idle()


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
@pytest.mark.parametrize("has_work", [False, True])
def test_a_flushing_update_succeeds_or_says_what_to_do(mode: str, has_work: bool) -> None:
    """Once a drain was answered an update can flush; under a freeze with work it is refused."""
    engine = scripted_engine()
    if has_work:
        engine.add("r", 40, budget=20)
        engine.rounds(3)
    engine.put(pause(mode))
    engine.run_until(lambda: engine.received.replies)
    engine.put(ControlRequest("update_weights_from_disk", {"model_path": "m"}))
    engine.round()
    reply = engine.received.replies[-1]
    assert reply.success == (mode != "keep" or not has_work)
    assert reply.success or "without flush_cache" in reply.message
    engine.put(ControlRequest("resume"))
    engine.to_idle()


OPERATIONS = (
    pause("abort"),
    pause("wait"),
    pause("keep"),
    ControlRequest("resume"),
    ControlRequest("flush_cache"),
    ControlRequest("release_memory"),
    ControlRequest("resume_memory"),
    ControlRequest("update_weights_from_disk", {"model_path": "m"}),
)


@pytest.mark.parametrize("gap", [0, 1, 3])
@pytest.mark.parametrize(("first", "second"), list(itertools.product(OPERATIONS, OPERATIONS)))
def test_every_pair_of_operations_gets_one_reply_each(
    first: ControlRequest, second: ControlRequest, gap: int
) -> None:
    """Whatever follows whatever, and how soon: nobody waits for ever, nobody is told twice."""
    engine = scripted_engine()
    engine.add("r", 5, budget=12)
    engine.rounds(3)
    send(engine, [first], rounds=gap)
    send(engine, [second], rounds=1)
    engine.run_until(lambda: engine.loop.controls.drain is None)
    engine.round()
    assert sorted(name for name, _ in told(engine)) == sorted([first.name, second.name])
    engine.put(ControlRequest("resume_memory"), ControlRequest("resume"))
    engine.to_idle()


def send(engine: EngineFixture, messages: Sequence[Message], *, rounds: int) -> None:
    """Send messages and run rounds; with none, they go with what comes next."""
    engine.put(*messages)
    engine.rounds(rounds)


def test_a_request_names_the_weights_of_its_last_token() -> None:
    """One that was admitted before an update and ran after it says so; one before it does not."""
    engine = scripted_engine()
    engine.add("old", 40, budget=3)
    engine.run_to_end("old")
    engine.put(pause("wait"))
    engine.add("between", 40, budget=3)
    engine.round()
    update = {"model_path": "m", "weight_version": "step-7"}
    engine.put(ControlRequest("update_weights_from_disk", update), ControlRequest("resume"))
    old, between = engine.run_to_end("old", "between")
    assert old.finish is not None
    assert between.finish is not None
    assert (old.finish.weight_version, between.finish.weight_version) == (None, "step-7")
    assert between.finish.details()["weight_version"] == "step-7"
    engine.to_idle()


def test_a_forward_from_before_an_update_names_the_older_weights() -> None:
    """At depth 1 it commits after the update, and its token is not the new weights'."""
    engine = scripted_engine(depth=1)
    plain = {"model_path": "m", "flush_cache": False}
    engine.put(ControlRequest("update_weights_from_disk", {**plain, "weight_version": "a"}))
    engine.add("r", 5, budget=2)
    engine.rounds(2)
    engine.put(ControlRequest("update_weights_from_disk", {**plain, "weight_version": "b"}))
    (stream,) = engine.run_to_end("r")
    assert stream.finish is not None
    assert stream.finish.weight_version == "a"
    assert engine.loop.controls.weight_version == "b"
    engine.to_idle()


@every_depth
@pytest.mark.parametrize("tiers", [Tiers.DEVICE_ONLY, Tiers.HOST])
def test_an_update_right_after_the_last_chunk_succeeds(depth: int, tiers: Tiers) -> None:
    """A client that read its stream's end may ask at once; what the stream left is waited for."""
    engine = scripted_engine(depth=depth, tiers=tiers)
    engine.add("r", 40, budget=20)
    engine.run_to_end("r")
    update = ControlRequest("update_weights_from_disk", {"model_path": "m"})
    engine.put(ControlRequest("flush_cache"), update)
    engine.run_until(lambda: len(engine.received.replies) == 2, max_rounds=20)
    assert told(engine) == [("flush_cache", True), ("update_weights_from_disk", True)]
    engine.to_idle()
