# SPDX-License-Identifier: MIT
"""What a second rank costs, in a process of its own on this host.

    python tests/benchmarks/ranks_cost.py [--json] [--exchanges 4000] [--rounds 2400] [--unpinned]

The relay of an idle round is compared with a bare ZMQ ping-pong: as a broadcast that the follower
answers with an empty payload, and as the gather it is once a plugin reports. A round of 64 rows
over the scripted plane is compared with the same round on one rank; both ranks must have ended it.
The alternatives take turns. Each rank keeps to a processor of its own, unless `--unpinned`: left
alone, Linux often runs both on one, since they wake each other. The ratios are medians over turns
that were neighbours.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter

import zmq
from attrs import asdict, define, frozen
from rich.console import Console
from rich.table import Table

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.loop.relay import Relay
from tokenspeed_core.ranks.meeting import local_seat
from tokenspeed_core.ranks.membership import Membership
from tokenspeed_core.ranks.mesh import Mesh, MeshRanks, ranks_of
from tokenspeed_core.ranks.single import SingleRank
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_core.testing import ScriptedDataPlane
from tokenspeed_hookspecs import (
    AddRequest,
    ControlReply,
    Load,
    Message,
    OutputBatch,
    SamplingParams,
)

ROWS, PROMPT, BUDGET, PAGE = 64, 128, 3900, 64
TURNS, WARM_ROUNDS = 40, 8
BARE, BROADCAST, GATHER = "bare ping-pong", "relay: broadcast, answered", "relay: gather"
ONE_RANK, TWO_RANKS = "round of one rank", "round on TP 2"
AT_MOST = {BROADCAST: 2.5, GATHER: 2.5, TWO_RANKS: 1.6}
TOPOLOGY = Topology(tp=2)
Turn = Callable[[int], object]


@frozen
class Cost:
    """Microseconds of an alternative and of what it is compared with; the ratio's median."""

    name: str
    compared_us: float
    us: float
    ratio: float
    at_most: float


@define
class AllRows:
    """A frontend that gives its messages once and forgets what it is sent."""

    messages: Sequence[Message]
    is_closed: bool = False

    def receive(self, wait_s: float | None) -> Sequence[Message]:
        """The messages, the first time."""
        messages, self.messages = self.messages, ()
        return messages

    def send(self, outputs: OutputBatch, load: Load) -> None:
        """Forget them."""

    def reply(self, reply: ControlReply) -> None:
        """Forget it."""


@frozen(eq=False)
class Side:
    """One of the two processes: each kind of turn, by name."""

    rank: int
    ranks: MeshRanks
    bare: zmq.Socket[bytes]

    def turns(self) -> dict[str, Turn]:
        """What both sides do at once."""
        rank = scripted_rank(self.ranks, EngineSection(data_plane="scripted", tp=2))
        return {
            BARE: self._ping_pong,
            BROADCAST: self._broadcast,
            GATHER: self._gather,
            TWO_RANKS: lambda count: run_rounds(rank, count),
        }

    def _ping_pong(self, count: int) -> None:
        for _ in range(count):
            if self.rank == 0:
                self.bare.send(b"")
            self.bare.recv()
            if self.rank == 1:
                self.bare.send(b"")

    def _broadcast(self, count: int) -> None:
        relay, mesh = Relay(self.ranks.replica), self.ranks.mesh
        for _ in range(count):
            relay.exchange(False, (), now=0.0, reports=None)
            _answered(mesh, self.rank)

    def _gather(self, count: int) -> None:
        relay = Relay(self.ranks.replica)
        for _ in range(count):
            relay.exchange(False, (), now=0.0, reports={})


def _answered(mesh: Mesh, rank: int) -> None:
    if rank == 0:
        mesh.receive(1)
    else:
        mesh.send(0, b"")


def scripted_rank(ranks: Membership, engine: EngineSection) -> Rank:
    """A rank whose rows all decode, without end as far as a benchmark goes."""
    sampling = SamplingParams(max_new_tokens=BUDGET)
    rows = [
        AddRequest(f"row-{row}", [(row * 997 + at) % 99_991 for at in range(PROMPT)], sampling)
        for row in range(ROWS)
    ]
    config = EngineConfig(
        engine=engine,
        scheduler=SchedulerSection(
            page_size=PAGE,
            num_pages=ROWS * ((PROMPT + BUDGET) // PAGE + 2) + 1,
            max_batch_size=ROWS,
            max_scheduled_tokens=1 << 18,
        ),
        without=("batch_log", "finish_line"),
        data_plane={"max_model_len": 16_384, "vocab_size": 1 << 20},
    )
    around = Surroundings(
        frontend=AllRows(rows) if ranks.rank == 0 else None,
        ranks=ranks,
        make_data_plane=ScriptedDataPlane,
        make_scheduler=NativeScheduler,
    )
    rank = build_rank(config, surroundings=around)
    rank.start()
    run_rounds(rank, WARM_ROUNDS)
    return rank


def run_rounds(rank: Rank, count: int) -> None:
    """So many rounds."""
    for _ in range(count):
        rank.loop.round()


@contextmanager
def side(rank: int, folder: Path) -> Iterator[Side]:
    """Meet the other process."""
    mesh = local_seat(rank, TOPOLOGY, folder=folder).meet()
    context = zmq.Context()
    bare: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    address = f"ipc://{folder}/bare"
    if rank == 0:
        bare.bind(address)
    else:
        bare.connect(address)
    try:
        yield Side(rank, ranks_of(TOPOLOGY, mesh), bare)
    finally:
        context.destroy(linger=0)
        mesh.close()


def keep_processor(rank: int) -> None:
    """Run this thread on one processor, another one for each rank where there are two."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[rank % len(processors)]})


def follow(folder: Path, orders: Connection, is_pinned: bool) -> None:
    """Be the second rank: take turns until there are no more orders."""
    if is_pinned:
        keep_processor(1)
    with side(1, folder) as own:
        turns = own.turns()
        while (order := orders.recv()) is not None:
            name, count = order
            turns[name](count)
            orders.send(name)


@contextmanager
def follower(folder: Path, *, is_pinned: bool) -> Iterator[Connection]:
    """The second rank's process, and where it takes orders."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=follow, args=(folder, theirs, is_pinned), daemon=True)
    process.start()
    try:
        yield ours
        ours.send(None)
        process.join(10)
    finally:
        process.kill()


def measure(exchanges: int, rounds: int, *, is_pinned: bool) -> list[Cost]:
    """Every turn of both processes, and of one rank alone."""
    alone = scripted_rank(SingleRank(), EngineSection(data_plane="scripted"))
    counts = {ONE_RANK: rounds // TURNS, TWO_RANKS: rounds // TURNS}
    with (
        tempfile.TemporaryDirectory(prefix="ts-") as name,
        follower(Path(name), is_pinned=is_pinned) as orders,
        side(0, Path(name)) as own,
    ):
        if is_pinned:
            keep_processor(0)  # now that the follower did not inherit it
        alternatives = {
            kind: together(kind, turn, orders=orders) for kind, turn in own.turns().items()
        }
        alternatives[ONE_RANK] = lambda count: run_rounds(alone, count)
        times: dict[str, list[float]] = {kind: [] for kind in alternatives}
        # Exchanges draw both processes onto one processor, where rounds would find them.
        for kinds in ((BARE, BROADCAST, GATHER), (ONE_RANK, TWO_RANKS)):
            for kind in kinds * TURNS:
                count = counts.get(kind, exchanges // TURNS)
                times[kind].append(timed(alternatives[kind], count))
    return [
        compared(times, BROADCAST, base=BARE),
        compared(times, GATHER, base=BARE),
        compared(times, TWO_RANKS, base=ONE_RANK),
    ]


def together(kind: str, turn: Turn, *, orders: Connection) -> Turn:
    """A turn that the follower takes as well, and is over when both have ended it."""

    def both(count: int) -> None:
        orders.send((kind, count))
        turn(count)
        assert orders.recv() == kind

    return both


def timed(turn: Turn, count: int) -> float:
    """Microseconds of one of so many."""
    begun = perf_counter()
    turn(count)
    return 1e6 * (perf_counter() - begun) / count


def compared(times: dict[str, list[float]], kind: str, *, base: str) -> Cost:
    """Medians of both, and the median of the ratios of turns that were neighbours."""
    ratios = [us / base_us for us, base_us in zip(times[kind], times[base], strict=True)]
    return Cost(kind, median(times[base]), median(times[kind]), median(ratios), AT_MOST[kind])


def show(costs: list[Cost]) -> None:
    """Print a table."""
    table = Table(title="a second rank, in a process of its own")
    for column in ("", "compared with, us", "us", "times as long", "at most"):
        table.add_column(column, justify="right" if column else "left")
    for cost in costs:
        style = "green" if cost.ratio <= cost.at_most else "red"
        table.add_row(
            cost.name,
            f"{cost.compared_us:,.1f}",
            f"{cost.us:,.1f}",
            f"[{style}]{cost.ratio:.2f}",
            f"{cost.at_most:.1f}",
        )
    Console().print(table)


def main() -> None:
    """Parse the command line, measure, print; code 1 where a ratio is too large."""
    parser = argparse.ArgumentParser(description="What a second rank costs.")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--exchanges", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=2400)
    parser.add_argument("--unpinned", action="store_true", help="on whatever processors")
    given = parser.parse_args()
    costs = measure(given.exchanges, given.rounds, is_pinned=not given.unpinned)
    if given.json:
        for cost in costs:
            print(json.dumps(asdict(cost)), flush=True)
    else:
        show(costs)
    sys.exit(any(cost.ratio > cost.at_most for cost in costs))


if __name__ == "__main__":
    main()
