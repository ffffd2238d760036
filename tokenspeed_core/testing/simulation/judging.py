# SPDX-License-Identifier: MIT
"""What must hold once a run is over."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from tokenspeed_core.loop.admission import NON_STREAM_INTERVAL
from tokenspeed_core.requests.table import CLIENT_ABORT
from tokenspeed_core.testing.simulation.faults import Harm
from tokenspeed_core.testing.simulation.plan import Arrival
from tokenspeed_core.testing.simulation.world import World
from tokenspeed_core.testing.streams import Stream

Answer = tuple[list[int], str | None]


@frozen
class Wanted:
    """The answer that a request must get: tokens (None: any) and its end (None: any); only the
    first of those tokens, or an end or none, where it is not `is_whole`."""

    tokens: list[int] | None
    kind: str | None = None
    is_whole: bool = True

    @property
    def cut_short(self) -> Wanted:
        """The answer to a request that something may end early."""
        return evolve(self, is_whole=False)

    def check(self, stream: Stream) -> None:
        """AssertionError: it is another answer."""
        name, tokens = stream.request_id, stream.tokens
        if not self.is_whole:
            is_prefix = self.tokens is None or tokens == self.tokens[: len(tokens)]
            assert is_prefix, f"{name}: {tokens} does not begin {self.tokens}"
            return
        is_right = self.tokens is None or tokens == self.tokens
        assert is_right, f"{name}: {tokens}, expected {self.tokens}"
        assert stream.finish is not None, f"{name} has no end"
        is_right = self.kind is None or stream.kind == self.kind
        assert is_right, f"{name} ended by {stream.kind}, expected {self.kind}"


def answered(world: World) -> Mapping[str, Wanted]:
    """The answers of a run without faults, which another run may be held to."""
    errors = list(world.errors.values())
    if errors:
        raise errors[0]
    found = {}
    for arrival in world.plan.arrivals:
        name = arrival.message.request_id
        stream = world.owner(arrival.replica).received[name]
        # Why a guest ends a request early is its own affair, and may be another reason elsewhere.
        is_free = name in world.ended_by_guests.names
        found[name] = Wanted(None) if is_free else Wanted(stream.tokens, stream.kind)
    return found


def judge(world: World, wanted: Mapping[str, Wanted]) -> None:
    """AssertionError: something does not hold. `wanted` has the answers that no plan can tell."""
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
        told = wanted.get(arrival.message.request_id) or _told(world, arrival)
        _check_stream(world, arrival, wanted=told if is_whole else told.cut_short)


def _told(world: World, arrival: Arrival) -> Wanted:
    room = world.owner(arrival.replica).scheduler.max_request_tokens
    return Wanted(arrival.expected(room))


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


def _check_stream(world: World, arrival: Arrival, *, wanted: Wanted) -> None:
    name = arrival.message.request_id
    owner = world.owner(arrival.replica)
    streams = owner.received.all_of(name)
    assert len(streams) <= 1, f"{name} has {len(streams)} ends"
    stream = owner.received[name]
    ends = [given for each, given in owner.plane.released if each == name]
    assert len(ends) <= 1, f"{name} was released {len(ends)} times"
    told = getattr(stream.finish, "message", None)
    assert told != CLIENT_ABORT, f"{name}: its client had left, and was told so"
    _check_intervals(arrival, stream, default=world.plan.stream_interval)
    is_early = arrival.abort_round is not None or _is_refused(stream.finish)
    is_early = is_early or name in world.ended_by_guests.names
    is_struck = any(name in engine.plane.faults.struck for engine in world.engines)
    if wanted.is_whole and is_struck and not is_early:
        assert stream.kind == "abort", f"{name} had NaN in a chunk and ended by {stream.kind}"
    if is_early or is_struck:
        wanted = wanted.cut_short
    wanted.check(stream)


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
