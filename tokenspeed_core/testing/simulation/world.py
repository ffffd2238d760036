# SPDX-License-Identifier: MIT
"""The ranks of a plan, run round by round, and what must hold after each round."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from attrs import define, evolve, field

from tokenspeed_core.composition.resolve import resolve
from tokenspeed_core.loop.controls import State
from tokenspeed_core.ranks.mesh import ranks_of
from tokenspeed_core.ranks.single import SingleRank
from tokenspeed_core.testing.engine import EngineFixture, EngineSetup
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.scripted_frontend import ManualFrontend
from tokenspeed_core.testing.scripted_options import RowFault
from tokenspeed_core.testing.simulation.baton import Baton, BatonMesh
from tokenspeed_core.testing.simulation.faults import Harm, Saboteur
from tokenspeed_core.testing.simulation.guests import NotedEnds
from tokenspeed_core.testing.simulation.plan import END_TOKEN, Plan
from tokenspeed_core.testing.simulation.plugin import Simulated
from tokenspeed_core.testing.simulation.resting import Rest
from tokenspeed_hookspecs import AbortRequests, ControlRequest, Message

STEP_S, JUMP_S, SKEW_S = 0.001, 3600.0, 17.3
PLACEHOLDER = -7  # what a pipeline stage samples that is not the last one
ABORT_PAUSE = ControlRequest("pause", {"mode": "abort"})
SETTLING_ROUNDS = 10
MOST_ROUNDS, PATIENT_ROUNDS = 3000, 300
WAKE_EVERY = 8


@define(eq=False)
class HeldClock:
    """Time that only rounds move."""

    now_s: float = 1000.0

    def of(self, rank: int) -> float:
        """Seconds on a rank: no two clocks agree."""
        return self.now_s + rank * SKEW_S

    def jump(self) -> None:
        """Let an hour pass."""
        self.now_s += JUMP_S


@define(eq=False)
class World:
    """One run of a plan; `errors` has what ended ranks, by rank."""

    plan: Plan
    engines: list[EngineFixture] = field(factory=list)
    saboteurs: list[Saboteur] = field(factory=list)
    errors: dict[int, BaseException] = field(factory=dict)
    num_rounds: int = 0
    clock: HeldClock = field(factory=HeldClock)
    ended_by_guests: NotedEnds = field(factory=NotedEnds)
    _rest: Rest = field(init=False)
    _baton: Baton = field(init=False)
    _asked: list[int] = field(init=False)
    _setup: EngineSetup = field(init=False)

    def __attrs_post_init__(self) -> None:
        size = self.plan.topology.world_size
        self._baton = Baton(size, random.Random(self.plan.seed))
        self._asked = [0] * self.plan.topology.dp
        self.saboteurs = [Saboteur((), dawdle=self.clock.jump) for _ in range(size)]
        self._rest = Rest(self.plan.guests.patience_s)
        setup = self.plan.setup
        self._setup = evolve(setup, resolved=resolve(setup.config(), setup.plugins))
        self._must([partial(self._built, rank) for rank in range(size)])
        for rank, saboteur in enumerate(self.saboteurs):
            saboteur.arm([fault for fault in self.plan.faults if fault.rank == rank])
        for engine in self.engines:
            self._plant_rows(engine)

    def owner(self, replica: int) -> EngineFixture:
        """The rank that has a replica's clients."""
        return self.engines[replica * self.plan.topology.replica_size]

    def plugin(self, rank: int) -> Simulated:
        """The rank's plugin."""
        return _simulated(self.engines[rank])

    def play(self) -> None:
        """Run the plan to its end, or until a rank ends with an error."""
        for number in range(self.plan.num_rounds):
            self._send(number)
            if not self.round():
                return
        end = self.num_rounds
        while self.num_rounds - end - self._rest.num_rounds < MOST_ROUNDS:
            number = self.num_rounds - end
            if self.is_over or (number > PATIENT_ROUNDS and self._may_stand_still()):
                return
            if number % WAKE_EVERY == 0:
                self._wake()
            if not self.round():
                return
        raise AssertionError(f"still at work after {MOST_ROUNDS} rounds: {self._left()}")

    def _may_stand_still(self) -> bool:
        fired = [fault for saboteur in self.saboteurs for fault in saboteur.fired]
        return any(fault.harm is Harm.STANDSTILL for fault in fired)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left on any rank, every rank runs, and operators have answers."""
        owners = [self.owner(replica) for replica in range(self.plan.topology.dp)]
        answered = [len(owner.received.replies) for owner in owners]
        return answered == self._asked and all(
            engine.is_quiet and engine.loop.controls.state is State.RUNNING
            for engine in self.engines
        )

    def round(self) -> bool:
        """Run one round on every rank that lives; False once one has ended with an error."""
        self.num_rounds += 1
        is_late = any(saboteur.strikes("clock jumps") for saboteur in self.saboteurs)
        self.clock.now_s += STEP_S
        if is_late:
            self.clock.jump()
        were_still = [_still_state(engine) for engine in self.engines]
        known = [tuple(engine.loop.requests.ids()) for engine in self.engines]
        held = [tuple(self.plugin(rank).holding) for rank in range(len(self.engines))]
        drained = [engine.loop.controls.drain is not None for engine in self.engines]
        self._note(self._baton.run([engine.round for engine in self.engines]))
        if self.errors:
            return False
        for engine, was_still in zip(self.engines, were_still, strict=True):
            # One that changed, from frozen to released, may have run what was left between.
            if was_still is not None and was_still is _still_state(engine):
                told = f"a forward ran while {was_still.value}"
                assert engine.loop.last_round.batch is None, told
        for rank, was_draining in enumerate(drained):
            self._check_cancelled(rank, held=held[rank], was_draining=was_draining)
            self._check_drain(rank, known=known[rank], was_draining=was_draining)
        for replica in range(self.plan.topology.dp):
            self._compare(replica)
        if self.plan.guests:
            self._rest.take(self.engines)
        return True

    def settle(self) -> None:
        """After an error: whoever still lives must end, at the latest when it has work."""
        for number in range(SETTLING_ROUNDS):
            if number == 1:
                self._put_everywhere(request("one more", 3, budget=3))
            living = [rank for rank in range(len(self.engines)) if rank not in self.errors]
            if not living:
                return
            acts: list[Callable[[], object]] = [
                self.engines[rank].loop.round if rank in living else _nothing
                for rank in range(len(self.engines))
            ]
            self._note(self._baton.run(acts))
        alive = [rank for rank in range(len(self.engines)) if rank not in self.errors]
        assert not alive, f"ranks {alive} live on after {self.errors}"

    def close(self) -> None:
        """Stop every rank, also those that failed."""
        problems = []
        for engine in self.engines:
            try:
                engine.rank.stop()
            except Exception as error:
                problems.append(error)
        self._baton.close()
        assert not problems, f"stopping failed: {problems}"

    # --- building --------------------------------------------------------------------------------

    def _built(self, rank: int) -> None:
        topology, saboteur = self.plan.topology, self.saboteurs[rank]
        place = topology.place(rank)
        is_last = place.stage == topology.pp - 1
        plane = {
            **self._setup.plane,
            "shard_count": topology.tp,
            "shard": place.position,
            "stage": place.stage,
            **({} if is_last else {"placeholder": PLACEHOLDER}),
        }
        mesh = BatonMesh(self._baton, rank, saboteur)
        is_alone = topology.world_size == 1
        noting = [self.ended_by_guests.stand_between] if self.plan.guests else []
        engine = EngineFixture(
            evolve(
                self._setup,
                plane=plane,
                frontend=ManualFrontend(),
                clock=partial(self.clock.of, rank),
                sleep=_nothing,
                on_parts=(saboteur.stand_between, *noting),
                ranks=SingleRank() if is_alone else ranks_of(topology, mesh, is_checked=True),
            )
        )
        if self.plan.guests:
            engine.loop.requests = self.ended_by_guests.watch(engine.loop.requests)
        self.engines.append(engine)
        self.engines.sort(key=lambda each: each.setup.ranks.rank)
        _simulated(engine).saboteur = saboteur
        self._baton.listeners[rank] = saboteur.hear

    def _plant_rows(self, engine: EngineFixture) -> None:
        for arrival in self.plan.arrivals:
            name = arrival.message.request_id
            if arrival.ends_at is not None:
                fault = RowFault(token=END_TOKEN)
                engine.plane.faults.at_token(name, arrival.ends_at, fault=fault)
            if arrival.nan_at is not None:
                engine.plane.faults.at_token(name, arrival.nan_at, fault=RowFault(is_nan=True))
            if arrival.nan_chunk:
                engine.plane.faults.in_chunks(name, fault=RowFault(is_nan=True))

    # --- what comes in ---------------------------------------------------------------------------

    def _send(self, number: int) -> None:
        """Do what is due before a round: operations, arrivals, and those that are given up."""
        plan = self.plan
        for at, operation in plan.operations:
            if at == number:
                self._put_everywhere(operation)
        for replica in range(plan.topology.dp):
            mine = [each for each in plan.arrivals if each.replica == replica]
            left = [each for each in mine if each.abort_round == number]
            told = [each for each in left if each.told and each.round < number]
            first = replica * plan.topology.replica_size
            for rank in range(first, first + plan.topology.replica_size):
                self.plugin(rank).due = [each.message.request_id for each in told]
            new: list[Message] = [each.message for each in mine if each.round == number]
            gone = tuple(each.message.request_id for each in left if each not in told)
            aborts: list[Message] = [AbortRequests(gone)] if gone else []
            self.owner(replica).put(*new, *aborts)

    def _put_everywhere(self, message: Message) -> None:
        for replica in range(self.plan.topology.dp):
            self._asked[replica] += isinstance(message, ControlRequest)
            self.owner(replica).put(message)

    def _wake(self) -> None:
        """Let an engine that stands still run again, once what drains was answered."""
        for replica in range(self.plan.topology.dp):
            controls = self.owner(replica).loop.controls
            if controls.state is State.RUNNING or controls.drain is not None:
                continue
            name = "resume_memory" if controls.released else "resume"
            self._asked[replica] += 1
            self.owner(replica).put(ControlRequest(name))

    def _check_cancelled(self, rank: int, *, held: Sequence[str], was_draining: bool) -> None:
        """A drain that begins ends, in its first round, what stages held before it."""
        if was_draining or self.engines[rank].loop.controls.drain is None:
            return
        left = [name for name in held if name in self.plugin(rank).holding]
        assert not left, f"a drain began and left {left} held"

    def _check_drain(self, rank: int, *, known: Sequence[str], was_draining: bool) -> None:
        """An `abort` pause ends at once what is registered; a drain is over with no forward out."""
        loop = self.engines[rank].loop
        is_draining = loop.controls.drain is not None
        if was_draining and not is_draining and loop.controls.state is not State.RUNNING:
            assert not loop.in_flight, "a drain is over with a forward in flight"
        asked = [op for at, op in self.plan.operations if at == self.num_rounds - 1]
        if was_draining or not is_draining or asked != [ABORT_PAUSE]:
            return
        states = [loop.requests.get(name) for name in known]
        running = [each.request_id for each in states if each and each.finish_reason is None]
        assert not running, f"an abort pause left {running} running"

    # --- what must hold --------------------------------------------------------------------------

    def _compare(self, replica: int) -> None:
        """The members of a replica did the same."""
        first = replica * self.plan.topology.replica_size
        owner, *others = range(first, first + self.plan.topology.replica_size)
        for rank in others:
            for what, mine, theirs in zip(
                FACTS, self._facts(owner), self._facts(rank), strict=True
            ):
                assert mine == theirs, f"{what} of ranks {owner} and {rank}: {mine} and {theirs}"

    def _facts(self, rank: int) -> Sequence[object]:
        engine = self.engines[rank]
        last, batch = engine.loop.last_round, engine.loop.last_round.batch
        rows = None
        if batch is not None:
            tables = {name: table.tobytes() for name, table in batch.block_tables.items()}
            rows = (batch.request_ids, batch.input_lengths, batch.slots.tolist(), tables)
        released = [name for name, _ in engine.plane.released]
        operations = [(op.op_id, op.kind) for op in last.plan.operations] if last.plan else []
        storage = [(op.op_id, op.kind) for op in last.plan.storage] if last.plan else []
        events = self.plugin(rank).events[-20:]
        state = engine.loop.controls.describe()
        return (engine.loop.requests.ids(), rows, operations, storage, released, events, state)

    def _left(self) -> str:
        facts = [
            f"rank {at}: {list(engine.loop.requests.ids())}, {engine.loop.controls.describe()}, "
            f"{engine.loop.ledger.num_open} cache operations"
            for at, engine in enumerate(self.engines)
        ]
        return "; ".join(facts)

    def _note(self, results: Sequence[tuple[object, BaseException | None]]) -> None:
        for rank, (_, error) in enumerate(results):
            if error is not None:
                self.errors.setdefault(rank, error)

    def _must(self, acts: Sequence[Callable[[], object]]) -> None:
        for _, error in self._baton.run(acts):
            if error is not None:
                raise error


FACTS = (
    "requests",
    "plans",
    "cache operations",
    "storage operations",
    "released",
    "cache events",
    "pause state",
)


def _simulated(engine: EngineFixture) -> Simulated:
    found = [each.instance for each in engine.rank.plugins]
    return next(each for each in found if isinstance(each, Simulated))


def _still_state(engine: EngineFixture) -> State | None:
    """The state in which no forward may run: frozen, without memory, or paused and empty by now."""
    controls = engine.loop.controls
    return None if controls.state is State.RUNNING or controls.drain is not None else controls.state


def _nothing(*arguments: object) -> None:
    """Stand still."""
