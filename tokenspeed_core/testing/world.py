# SPDX-License-Identifier: MIT
"""Several ranks of one deployment in this process, each on a thread, driven round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from tokenspeed_core.ranks.mesh import Mesh, RankError, ranks_of
from tokenspeed_core.ranks.thread_mesh import ThreadWorld
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.engine import MAX_ROUNDS, EngineFixture, EngineSetup
from tokenspeed_core.testing.scripted_frontend import ManualFrontend, ScriptedFrontend
from tokenspeed_hookspecs import Message

PLACEHOLDER = -7
T = TypeVar("T")


class WorldFixture:
    """`engines` has one fixture a rank; a round runs on all of them at once.

    Every exchange is checked, and after each round the members of a replica are compared: what is
    registered, what was planned, what was released. Pipeline stages but the last sample nothing.
    """

    def __init__(
        self,
        topology: Topology,
        setup: EngineSetup | None = None,
        *,
        plane: Mapping[int, Mapping[str, Any]] | None = None,
        frontends: Mapping[int, ScriptedFrontend] | None = None,
        meshes: Sequence[Mesh] | None = None,
    ) -> None:
        self.topology = topology
        self._setup = setup or EngineSetup()
        self._plane = plane or {}
        self._frontends = frontends or {}
        self._meshes = meshes or thread_meshes(topology.world_size)
        self._pool = ThreadPoolExecutor(topology.world_size, "rank")
        self._compared: dict[int, int] = {}
        self.engines: list[EngineFixture] = []
        self.engines = self._on_all(self._make, list(range(topology.world_size)))

    def __enter__(self) -> WorldFixture:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop every rank and the threads."""
        self._on_all(lambda engine: engine.rank.stop(), self.engines)
        self._pool.shutdown()
        for mesh in self._meshes:
            mesh.close()

    def engine(self, replica: int = 0) -> EngineFixture:
        """The rank that has a replica's frontend."""
        return self.engines[replica * self.topology.replica_size]

    def put(self, *messages: Message, replica: int | None = None) -> None:
        """Leave messages for the next round of one replica, or of each."""
        chosen = range(self.topology.dp) if replica is None else [replica]
        for each in chosen:
            self.engine(each).put(*messages)

    def round(self) -> list[bool]:
        """Run one round everywhere; returns which ranks stop after it."""
        over = self._on_all(lambda engine: engine.round(), self.engines)
        for replica in range(self.topology.dp):
            self._compare(replica)
        return over

    def rounds(self, count: int) -> None:
        """Run so many rounds."""
        for _ in range(count):
            self.round()

    def run_until(self, condition: Callable[[], object], *, max_rounds: int = MAX_ROUNDS) -> None:
        """Run rounds until the condition holds. AssertionError past the limit."""
        for _ in range(max_rounds):
            if condition():
                return
            self.round()
            self.engines[0].rest()
        raise AssertionError(f"still waiting after {max_rounds} rounds")

    def to_idle(self) -> None:
        """Run until no rank has anything left, then check that all is back at its start."""
        quiet = 0
        while quiet < 3:
            self.run_until(lambda: all(engine.is_quiet for engine in self.engines))
            self.round()
            quiet = quiet + 1 if all(engine.is_quiet for engine in self.engines) else 0
        for engine in self.engines:
            engine.check_idle()

    # ---------------------------------------------------------------------------------------------

    def _make(self, rank: int) -> EngineFixture:
        ranks = ranks_of(self.topology, self._meshes[rank], is_checked=True)
        place = self.topology.place(rank)
        part = {"shard_count": self.topology.tp, "shard": place.position, "stage": place.stage}
        options = {**part, **self._setup.plane, **self._plane.get(rank, {})}
        if place.stage < self.topology.pp - 1:
            options["placeholder"] = PLACEHOLDER
        frontend = self._frontends.get(place.replica) if ranks.replica.index == 0 else None
        setup = evolve(
            self._setup, ranks=ranks, plane=options, frontend=frontend or ManualFrontend()
        )
        return EngineFixture(setup)

    def _on_all(self, act: Callable[[Any], T], given: list[Any]) -> list[T]:
        """Run on every rank's thread; the first cause is raised, not what followed from it."""
        futures = [
            self._pool.submit(self._owned, partial(act, each), rank)
            for rank, each in enumerate(given)
        ]
        wait(futures)
        errors = [error for error in map(_error, futures) if error is not None]
        causes = [error for error in errors if not isinstance(error, RankError)]
        for error in [*causes, *errors]:
            raise error
        return [future.result() for future in futures]

    def _owned(self, act: Callable[[], T], rank: int) -> T:
        try:
            return act()
        except BaseException as error:
            self._meshes[rank].fail(f"{type(error).__name__}: {error}")
            raise

    def _compare(self, replica: int) -> None:
        first = replica * self.topology.replica_size
        owner, *others = self.engines[first : first + self.topology.replica_size]
        for engine in others:
            assert engine.loop.requests.ids() == owner.loop.requests.ids(), "tables differ"
            assert _planned(engine) == _planned(owner), "plans differ"
            assert _released(engine) == _released(owner), "released requests differ"


def thread_meshes(size: int, limit_s: float = 30.0) -> list[Mesh]:
    """The meshes of so many ranks in this process."""
    world = ThreadWorld(size, limit_s)
    return [world.mesh(rank) for rank in range(size)]


def _planned(engine: EngineFixture) -> list[Any]:
    if not engine.plane.batches:
        return []
    last = engine.plane.batches[-1]
    return [len(engine.plane.batches), last.request_ids, list(last.input_lengths)]


def _released(engine: EngineFixture) -> list[str]:
    return [request_id for request_id, _ in engine.plane.released]


def _error(future: Future[Any]) -> BaseException | None:
    return future.exception()
