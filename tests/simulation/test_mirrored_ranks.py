# SPDX-License-Identifier: MIT
"""Seeded random traffic and operators on mirrored ranks, compared after every round."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from attrs import evolve, frozen

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import EngineSetup, Tiers, WorldFixture, request, telling_tokens
from tokenspeed_hookspecs import AbortRequests, AddRequest, ControlRequest, Message

BATCHES, SEEDS_A_BATCH = 4, 12
TOPOLOGIES = (
    Topology(tp=2),
    Topology(tp=4),
    Topology(pp=2),
    Topology(tp=2, pp=2),
    Topology(dp=2),
    Topology(tp=2, dp=2),
)
OPERATIONS = (
    ControlRequest("pause", {"mode": "wait"}),
    ControlRequest("pause", {"mode": "keep"}),
    *[ControlRequest("resume")] * 3,
    ControlRequest("flush_cache"),
    ControlRequest("release_memory"),
    *[ControlRequest("resume_memory")] * 2,
    ControlRequest("update_weights_from_disk", {"model_path": "m"}),
)


@frozen
class Plan:
    """A world, and what each round brings to which replica; all from a seed.

    Operators ask every replica alike, as a client does.
    """

    topology: Topology
    setup: EngineSetup
    requests: list[tuple[int, int, AddRequest]]
    aborts: list[tuple[int, int, str]]
    operations: list[tuple[int, ControlRequest]]

    @classmethod
    def of(cls, seed: int) -> Plan:
        """The plan of a seed."""
        rng = random.Random(seed)
        topology = rng.choice(TOPOLOGIES)
        requests, at = [], 0
        for number in range(rng.randint(3, 10)):
            at += rng.randint(0, 4)
            prompt = [*range(rng.randint(0, 60)), *range(100, 100 + rng.randint(1, 30))]
            added = request(f"r{number}", prompt, budget=rng.randint(1, 25))
            requests.append((at, rng.randrange(topology.dp), added))
        aborts = [
            (at + rng.randint(0, 15), replica, added.request_id)
            for at, replica, added in requests
            if rng.random() < 0.25
        ]
        rounds = sorted(rng.randint(0, 40) for _ in range(rng.choice([0, 0, 3, 6])))
        operations = [(number, rng.choice(OPERATIONS)) for number in rounds]
        return cls(topology, _setup(rng, topology), requests, aborts, operations)

    def messages(self, number: int, replica: int) -> list[Message]:
        """What a replica's frontend hands over in a round."""
        found: list[Message] = [ask for at, ask in self.operations if at == number]
        found += [add for at, to, add in self.requests if (at, to) == (number, replica)]
        gone = tuple(name for at, to, name in self.aborts if (at, to) == (number, replica))
        return [*found, AbortRequests(gone)] if gone else found

    @property
    def last(self) -> int:
        """The last round that brings something."""
        rounds = [at for at, _, _ in self.requests] + [at for at, _, _ in self.aborts]
        return max(rounds + [at for at, _ in self.operations])


def _setup(rng: random.Random, topology: Topology) -> EngineSetup:
    tiers = rng.choice([Tiers.DEVICE_ONLY, Tiers.FORCED_RETRACTION, Tiers.HOST])
    scheduler = {
        "num_pages": rng.choice([16, 40, 513]),
        "max_batch_size": rng.choice([1, 3, 8]),
        "max_scheduled_tokens": rng.choice([8, 40, 256]),
    }
    if tiers is Tiers.HOST:
        scheduler["host_pages"] = rng.choice([20, 100])
    depth = max(rng.choice([0, 1, 2]), topology.pp if rng.random() < 0.5 else 0)
    return EngineSetup(depth=depth, tiers=tiers, scheduler=scheduler)


def run(plan: Plan) -> list[tuple[str, list[int], str | None]]:
    """Run a plan to idle; every stream."""
    with WorldFixture(plan.topology, plan.setup) as world:
        for number in range(plan.last + 1):
            for replica in range(plan.topology.dp):
                world.put(*plan.messages(number, replica), replica=replica)
            world.round()
        _wake(world)
        world.to_idle()
        engines = [world.engine(replica) for replica in range(plan.topology.dp)]
        for engine in engines:
            names = sorted(reply.name for reply in engine.received.replies)
            assert names == sorted(ask.name for _, ask in plan.operations)
        return [
            (
                add.request_id,
                engines[to].received[add.request_id].tokens,
                engines[to].received[add.request_id].kind,
            )
            for _, to, add in plan.requests
        ]


def _wake(world: WorldFixture) -> None:
    """Let what drains be answered, then run again, on every rank alike."""
    loops = [engine.loop for engine in world.engines]
    world.run_until(
        lambda: all(each.controls.drain is None and not each.gate.is_busy for each in loops)
    )
    for engine in world.engines:
        controls = engine.loop.controls
        if controls.released:
            regions = controls.to_resume()
            assert isinstance(regions, tuple)
            engine.plane.resume_memory(regions)
            controls.finish_resume(regions)
        assert controls.resume().success


def _check(plan: Plan, streams: Sequence[tuple[str, list[int], str | None]]) -> None:
    aborted = {name for _, _, name in plan.aborts}
    for (name, tokens, kind), (_, _, added) in zip(streams, plan.requests, strict=True):
        budget = added.sampling.max_new_tokens
        assert budget is not None
        assert tokens == telling_tokens(budget)[: len(tokens)], name
        if name not in aborted and kind != "abort":
            assert (len(tokens), kind) == (budget, "length"), name


@pytest.mark.parametrize("batch", range(BATCHES))
def test_mirrored_ranks_never_drift(batch: int) -> None:
    """Tables, plans and releases are the same after each round; every request gets its tokens."""
    for seed in range(batch * SEEDS_A_BATCH, (batch + 1) * SEEDS_A_BATCH):
        plan = Plan.of(seed)
        try:
            _check(plan, run(plan))
        except BaseException as error:
            error.add_note(f"seed {seed}: {plan.topology}, {plan.setup}")
            raise


def test_several_ranks_deliver_what_one_does() -> None:
    """Without aborts and operators the streams are those of a single rank."""
    for seed in range(100, 110):
        plan = evolve(Plan.of(seed), aborts=[], operations=[])
        alone = evolve(
            plan, topology=Topology(), requests=[(at, 0, add) for at, _, add in plan.requests]
        )
        assert run(plan) == run(alone), seed
