# SPDX-License-Identifier: MIT
"""Acceptance scenarios of the control operations: through the real client, over ipc."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from attrs import evolve

from tokenspeed_core.testing import (
    Chunk,
    EngineFixture,
    EngineSetup,
    ScriptedFrontend,
    Tiers,
    request,
    telling_tokens,
)
from tokenspeed_core.testing.client_reading import Reading, ask, read, soon
from tokenspeed_core.testing.served_engine import Served, served_engines
from tokenspeed_hookspecs import (
    AdmissionStage,
    CacheOperationKind,
    ControlReply,
    ControlRequest,
    Hold,
    Message,
    Pass,
    Plugin,
    Request,
    Verdict,
    hookimpl,
)

both_depths = pytest.mark.parametrize("depth", [0, 1])


def setup(depth: int, *plugins: type[Plugin], tiers: Tiers = Tiers.DEVICE_ONLY) -> EngineSetup:
    """The usual small engine, with a device that takes a millisecond for a forward."""
    return EngineSetup(depth=depth, plane={"forward_ms": 1.0}, plugins=plugins, tiers=tiers)


async def one(served: Served, name: str, **arguments: object) -> ControlReply:
    """The only engine's reply to a control request."""
    (reply,) = await soon(served.client.control(ControlRequest(name, arguments)))
    return reply


class Compiling:
    """Holds requests of the name `cold`, as if something were made ready for them, and no other."""

    name = "compiling"

    def enter(self, request: Request) -> Verdict:
        return Hold() if request.request_id == "cold" else Pass()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        return [0] * len(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        return [Hold()] * len(held)

    def leave(self, request_id: str) -> None:
        """Nothing is kept."""


class CompilingPlugin(Plugin):
    """Brings the stage."""

    name = "compiling"

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [Compiling()]


@both_depths
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("drain", "undo"),
    [(("pause", {"mode": "wait"}), "resume"), (("release_memory", {}), "resume_memory")],
)
async def test_a_drain_cancels_the_requests_still_compiling(
    depth: int, drain: tuple[str, dict[str, object]], undo: str
) -> None:
    """A request that no stage let through ends within the drain, which succeeds; after the undo
    another one runs."""
    async with served_engines(setup(depth, CompilingPlugin)) as served:
        cold = await served.client.generate(request("cold", 8, budget=6))
        assert (await one(served, drain[0], **drain[1])).success
        answer = await soon(read(cold), limit_s=1.0)
        assert (await one(served, undo)).success
        after = await ask(served.client, request("warm", 8, budget=2))
    assert answer.finish is not None
    assert (answer.tokens, answer.kind) == ([], "abort")
    assert answer.finish.message == "Aborted by pause"
    assert after.tokens == [1000, 1001]


@both_depths
@pytest.mark.anyio
async def test_a_wait_pause_answers_once_drained_and_withholds_new_requests(depth: int) -> None:
    """The running request gets all its tokens before the reply; a new one waits for the resume."""
    async with served_engines(setup(depth)) as served:
        running = await served.client.generate(request("r1", 5, budget=40))
        paused, answer = await asyncio.gather(one(served, "pause", mode="wait"), read(running))
        assert (paused.success, answer.tokens) == (True, telling_tokens(40))
        assert (await one(served, "is_paused")).values == {"is_paused": True}
        later = await served.client.generate(request("later", 5, budget=3))
        reading = asyncio.ensure_future(read(later))
        assert not (await asyncio.wait([reading], timeout=0.2))[0]
        assert (await one(served, "resume")).success
        assert (await reading).tokens == [1000, 1001, 1002]


@both_depths
@pytest.mark.anyio
async def test_an_abort_pause_aborts_what_runs_and_a_keep_pause_freezes_it(depth: int) -> None:
    """An abort pause ends a running request. A keep pause is answered at once and holds one in
    the middle, which goes on after the resume as if nothing had been.

    Forwards take longer here than in the other scenarios, so that a busy machine has time to ask.
    """
    async with served_engines(evolve(setup(depth), plane={"forward_ms": 20.0})) as served:
        long = await served.client.generate(request("long", 5, budget=100_000))
        await anext(long)
        assert (await one(served, "pause", mode="abort")).success
        assert (await read(long)).kind == "abort"
        assert (await one(served, "resume")).success
        reading = Reading(await served.client.generate(request("r1", 5, budget=30)))
        await reading.first()
        assert (await one(served, "pause", mode="keep")).success
        await asyncio.sleep(0.1)
        frozen_at = len(reading.answer.tokens)
        await asyncio.sleep(0.05)
        assert len(reading.answer.tokens) == frozen_at < 30
        assert (await one(served, "resume")).success
        answer = await reading.end()
    assert (answer.kind, answer.tokens) == ("length", telling_tokens(30))


@both_depths
@pytest.mark.anyio
async def test_memory_is_released_after_the_drain_and_resumed_in_reverse_order(depth: int) -> None:
    """The release waits for the running request; while memory is gone the scheduler cannot be
    resumed; the regions come back in reverse, and then requests run."""
    async with served_engines(setup(depth)) as served:
        running = await served.client.generate(request("r1", 5, budget=20))
        released, answer = await asyncio.gather(one(served, "release_memory"), read(running))
        assert (released.success, answer.tokens) == (True, telling_tokens(20))
        assert (await one(served, "is_sleeping")).values == {"is_sleeping": True}
        assert not (await one(served, "resume")).success
        assert (await one(served, "resume_memory")).success
        assert (await one(served, "is_sleeping")).values == {"is_sleeping": False}
        assert served.plane.asked.done == ["release kv_cache,weights", "resume weights,kv_cache"]
        assert (await one(served, "profile", type=1, num_steps=3)).success
        assert (await ask(served.client, request("r2", 5, budget=2))).tokens == [1000, 1001]


@both_depths
@pytest.mark.anyio
async def test_a_flush_under_a_keep_pause_runs_once_the_cache_work_did(depth: int) -> None:
    """Frozen right after a request's end, the engine still writes its last pages back; then the
    cache can be flushed."""
    async with served_engines(setup(depth, tiers=Tiers.HOST)) as served:
        answer = await ask(served.client, request("r1", 65, budget=2))
        assert (await one(served, "pause", mode="keep")).success
        await served.quiet()
        assert (await one(served, "flush_cache")).success
        assert served.plane.operations[CacheOperationKind.WRITE_BACK] > 0
        assert (await one(served, "resume")).success
    assert answer.kind == "length"


def test_a_flush_in_a_later_round_of_a_keep_pause_runs_once_the_cache_work_did() -> None:
    """The same by the round: a freeze on the first end, a flush in round 30."""

    def freeze(_: str, chunk: Chunk) -> Sequence[Message]:
        return [ControlRequest("pause", {"mode": "keep"})] if chunk.finish is not None else ()

    script: list[Sequence[Message]] = [()] * 40
    script[0] = [request("r1", 65, budget=2)]
    script[30] = [ControlRequest("flush_cache")]
    frontend = ScriptedFrontend(script, freeze)
    engine = EngineFixture(EngineSetup(depth=0, tiers=Tiers.HOST, frontend=frontend))
    engine.loop.run(lambda: False)
    told = [(reply.name, reply.success) for reply in engine.received.replies]
    assert (engine.received["r1"].kind, told) == (
        "length",
        [("pause", True), ("flush_cache", True)],
    )
    assert engine.count(CacheOperationKind.WRITE_BACK) > 0
    engine.rank.stop()
