# SPDX-License-Identifier: MIT
"""Running plans: one, a range of seeds, and one in which call after call fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from tokenspeed_core.testing.simulation.faults import HARMS, Fault
from tokenspeed_core.testing.simulation.guests import Guests
from tokenspeed_core.testing.simulation.judging import Answer, Wanted, answered, judge
from tokenspeed_core.testing.simulation.plan import NO_GUESTS, Plan
from tokenspeed_core.testing.simulation.variations import of_guests, plain
from tokenspeed_core.testing.simulation.world import World


class SimulationError(AssertionError):
    """What must hold does not; the plan is in the text."""


@frozen(kw_only=True)
class Outcome:
    """What a run came to."""

    seed: int
    rounds: int
    requests: int
    tokens: int
    faults: Sequence[Fault] = ()
    failure: str = ""
    streams: Mapping[str, Answer] = field(factory=dict)


def simulate(plan: Plan) -> Outcome:
    """Run a plan. SimulationError: something does not hold that must."""
    try:
        wanted = _answers_alone(plan)
        if plan.is_restart:
            _played(plain(plan), wanted)
        return _outcome(_played(plan, wanted))
    except Exception as error:
        raise SimulationError(f"{type(error).__name__}: {error}\n{plan}") from error


def _played(plan: Plan, wanted: Mapping[str, Wanted]) -> World:
    world = World(plan)
    try:
        world.play()
        judge(world, wanted)
    finally:
        world.close()
    return world


def _answers_alone(plan: Plan) -> Mapping[str, Wanted]:
    """What requests for guests are answered where nothing else happens, whatever that is."""
    alone = of_guests(plan)
    if not alone.arrivals:
        return {}
    world = World(alone)
    try:
        world.play()
        return answered(world)
    finally:
        world.close()


def simulate_seeds(
    seeds: Sequence[int], guests: Guests = NO_GUESTS
) -> Iterator[tuple[int, Outcome | SimulationError]]:
    """Run each seed's plan; a failure is given, not raised, so that the others run too."""
    for seed in seeds:
        try:
            yield seed, simulate(Plan.of(seed, guests))
        except SimulationError as error:
            yield seed, error


def _outcome(world: World) -> Outcome:
    streams = {
        each.message.request_id: world.owner(each.replica).received[each.message.request_id]
        for each in world.plan.arrivals
    }
    failure = "; ".join(f"rank {rank}: {error}" for rank, error in sorted(world.errors.items()))
    return Outcome(
        seed=world.plan.seed,
        rounds=world.num_rounds,
        requests=len(streams),
        tokens=sum(len(stream.tokens) for stream in streams.values()),
        faults=[fault for saboteur in world.saboteurs for fault in saboteur.fired],
        failure=failure,
        streams={name: (stream.tokens, stream.kind) for name, stream in streams.items()},
    )


def sweep(plan: Plan, kind: str, *, most: int = 1000) -> int:
    """Let the n-th call of a kind fail, for each n until there is none; returns how many failed."""
    assert kind in HARMS, f"there is no fault {kind!r}"
    for nth in range(1, most):
        outcome = simulate(evolve(plan, faults=[Fault(kind, 0, nth)]))
        if not outcome.faults:
            return nth - 1
    return most
