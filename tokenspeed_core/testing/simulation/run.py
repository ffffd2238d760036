# SPDX-License-Identifier: MIT
"""Running plans: one, a range of seeds, one plan in two ways, and a failing plan made smaller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from attrs import evolve, field, frozen

from tokenspeed_core.loop.admission import NON_STREAM_INTERVAL
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.requests.table import CLIENT_ABORT
from tokenspeed_core.testing.simulation.faults import HARMS, Fault, Harm
from tokenspeed_core.testing.simulation.plan import Arrival, Plan
from tokenspeed_core.testing.simulation.world import World, expected_of
from tokenspeed_core.testing.streams import Stream

MOST_SHRINKS = 200


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
    streams: dict[str, tuple[list[int], str | None]] = field(factory=dict)


def simulate(plan: Plan) -> Outcome:
    """Run a plan. SimulationError: something does not hold that must."""
    try:
        world = World(plan)
        try:
            world.play()
            _judge(world)
        finally:
            world.close()
    except Exception as error:
        raise SimulationError(f"{type(error).__name__}: {error}\n{plan}") from error
    return _outcome(world)


def simulate_seeds(
    seeds: Sequence[int], *, limit_s: float | None = None
) -> Iterator[tuple[int, Outcome | SimulationError]]:
    """Run each seed's plan; a failure is given, not raised, so that the others run too."""
    end = None if limit_s is None else time.monotonic() + limit_s
    for seed in seeds:
        if end is not None and time.monotonic() > end:
            return
        try:
            yield seed, simulate(Plan.of(seed))
        except SimulationError as error:
            yield seed, error


# --- what must hold ------------------------------------------------------------------------------


def _judge(world: World) -> None:
    fired = [fault for saboteur in world.saboteurs for fault in saboteur.fired]
    harms = {fault.harm for fault in fired}
    if world.errors:
        errors = [f"rank {rank}: {type(e).__name__}: {e}" for rank, e in world.errors.items()]
        assert harms & {Harm.END, Harm.EITHER}, f"ended without a fault that ends: {errors}"
        broken = [e for e in world.errors.values() if isinstance(e, AssertionError)]
        assert not broken, f"an invariant broke on the way to the end: {broken}"
        world.settle()
    else:
        unnoticed = [str(fault) for fault in fired if fault.harm is Harm.END]
        assert not unnoticed, f"nothing came of {unnoticed}"
        if Harm.STANDSTILL not in harms:
            _check_idle(world)
    is_whole = not world.errors and harms <= {Harm.NONE}
    for arrival in world.plan.arrivals:
        _check_stream(world, arrival, is_whole=is_whole)


def _check_idle(world: World) -> None:
    assert world.is_over, "the run ended before its work"
    for engine in world.engines:
        engine.check_idle()
    asked = sorted(operation.name for _, operation in world.plan.operations)
    for replica in range(world.plan.topology.dp):
        names = [reply.name for reply in world.owner(replica).received.replies]
        extra = [name for name in names if name in {"resume", "resume_memory"}]
        answered = sorted(names)
        for name in asked:
            assert name in answered, f"{name} was never answered; answered are {names}"
            answered.remove(name)
        assert set(answered) <= set(extra), f"answered without a question: {answered}"


def _check_stream(world: World, arrival: Arrival, *, is_whole: bool) -> None:
    name = arrival.message.request_id
    owner = world.owner(arrival.replica)
    streams = owner.received.all_of(name)
    assert len(streams) <= 1, f"{name} has {len(streams)} ends"
    stream = owner.received[name]
    expected = expected_of(world, arrival)
    ends = [given for each, given in owner.plane.released if each == name]
    assert len(ends) <= 1, f"{name} was released {len(ends)} times"
    told = getattr(stream.finish, "message", None)
    assert told != CLIENT_ABORT, f"{name}: its client had left, and was told so"
    early = arrival.abort_round is not None or _is_refused(stream.finish)
    _check_intervals(arrival, stream, default=world.plan.stream_interval)
    is_struck = any(name in engine.plane.faults.struck for engine in world.engines)
    if is_whole and is_struck and not early:
        assert stream.kind == "abort", f"{name} had NaN in a chunk and ended by {stream.kind}"
    if is_whole and not early and not is_struck:
        assert stream.tokens == expected, f"{name}: {stream.tokens}, expected {expected}"
        assert stream.finish is not None, f"{name} has no end"
    else:
        is_prefix = stream.tokens == expected[: len(stream.tokens)]
        assert is_prefix, f"{name}: {stream.tokens} does not begin {expected}"


def _check_intervals(arrival: Arrival, stream: Stream, *, default: int) -> None:
    """Chunks before the last come with the first token, and then so many tokens apart."""
    message = arrival.message
    interval = message.sampling.stream_interval or default
    if not message.stream:
        interval = NON_STREAM_INTERVAL
    counts = [chunk.completion_tokens for chunk in stream.chunks[:-1]]
    assert counts == [1 + number * interval for number in range(len(counts))], (
        f"{message.request_id} has an interval of {interval} and had chunks at {counts} tokens"
    )


def _is_refused(finish: object) -> bool:
    message = getattr(finish, "message", None)
    code = getattr(finish, "status_code", None)
    return message == "Aborted by pause" or code == 400


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


# --- one plan in two ways ------------------------------------------------------------------------

Variation = Callable[[Plan], Plan]
VARIATIONS: dict[str, Variation] = {
    "depth 0": lambda plan: evolve(plan, depth=0),
    "depth 2": lambda plan: evolve(plan, depth=2),
    "one rank": lambda plan: evolve(
        plan,
        topology=Topology(),
        arrivals=[evolve(each, replica=0) for each in plan.arrivals],
    ),
    "two ranks": lambda plan: evolve(
        plan,
        topology=Topology(tp=2),
        arrivals=[evolve(each, replica=0) for each in plan.arrivals],
    ),
    "a large pool": lambda plan: evolve(plan, scheduler={**plan.scheduler, "num_pages": 513}),
    "another interval": lambda plan: evolve(plan, stream_interval=3),
    "nobody held": lambda plan: evolve(
        plan, arrivals=[evolve(_unheld(each), polls=0) for each in plan.arrivals]
    ),
    "no events": lambda plan: evolve(plan, is_watched=False),
}


def _unheld(arrival: Arrival) -> Arrival:
    return evolve(arrival, message=evolve(arrival.message, features={}))


def plain(plan: Plan) -> Plan:
    """The plan with nothing that ends or stops a request early, or depends on how it is cut."""
    arrivals = [evolve(each, abort_round=None, nan_chunk=False) for each in plan.arrivals]
    return evolve(plan, arrivals=arrivals, operations=(), faults=())


def compare(plan: Plan) -> list[str]:
    """Run the plain plan in every variation; what differs in its answers."""
    base = plain(plan)
    wanted = _answers(simulate(base))
    found = []
    for name, vary in VARIATIONS.items():
        varied = vary(base)
        if varied.topology.pp > 1 and varied.depth == 0:
            continue
        got = _answers(simulate(varied))
        # A request too large for the pool is refused there and runs in a larger one.
        same = wanted if name != "a large pool" else {k: v for k, v in wanted.items() if v[0]}
        differ = [key for key in same if got[key] != wanted[key]]
        if differ:
            found.append(f"{name}: {differ[0]} got {got[differ[0]]}, else {wanted[differ[0]]}")
    return found


def _answers(outcome: Outcome) -> dict[str, tuple[list[int], str | None]]:
    return dict(outcome.streams)


def sweep(plan: Plan, kind: str, *, most: int = 1000) -> int:
    """Let the n-th call of a kind fail, for each n until there is none; returns how many failed."""
    assert kind in HARMS, f"there is no fault {kind!r}"
    for nth in range(1, most):
        outcome = simulate(evolve(plan, faults=[Fault(kind, 0, nth)]))
        if not outcome.faults:
            return nth - 1
    return most


# --- a failing plan, made smaller ----------------------------------------------------------------


def shrink(plan: Plan) -> Plan:
    """The smallest plan found that still fails: fewer requests, operations, faults and ranks."""
    tries = 0
    while True:
        for smaller in _smaller(plan):
            tries += 1
            if tries > MOST_SHRINKS:
                return plan
            if _fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for at in range(len(plan.arrivals)):
        yield evolve(plan, arrivals=[*plan.arrivals[:at], *plan.arrivals[at + 1 :]])
    for at in range(len(plan.operations)):
        yield evolve(plan, operations=[*plan.operations[:at], *plan.operations[at + 1 :]])
    for at in range(len(plan.faults)):
        yield evolve(plan, faults=[*plan.faults[:at], *plan.faults[at + 1 :]])
    if plan.topology != Topology():
        arrivals = [evolve(each, replica=0) for each in plan.arrivals]
        yield evolve(plan, topology=Topology(), arrivals=arrivals)
    if plan.sliding_window is not None:
        yield evolve(plan, sliding_window=None)


def _fails(plan: Plan) -> bool:
    if not plan.arrivals and not plan.operations:
        return False
    try:
        simulate(plan)
    except SimulationError:
        return True
    return False
