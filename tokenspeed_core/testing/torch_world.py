# SPDX-License-Identifier: MIT
"""Several ranks that run one real model together, each on a thread of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from torch._C._distributed_c10d import HashStore

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.ranks.device_seat import DeviceSeat
from tokenspeed_core.ranks.mesh import ranks_of
from tokenspeed_core.ranks.thread_mesh import ThreadWorld
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.scripted_frontend import ManualFrontend
from tokenspeed_core.testing.streams import Stream
from tokenspeed_core.testing.torch_engine import MAX_ROUNDS, TorchSetup
from tokenspeed_hookspecs import AddRequest, ControlReply, ControlRequest

T = TypeVar("T")


class TorchWorld:
    """Started ranks, as a context manager; the first replica's frontend takes the requests."""

    def __init__(self, topology: Topology, setup: TorchSetup) -> None:
        self.frontend = ManualFrontend()
        self.ranks: list[Rank] = []
        self._topology = topology
        self._setup = setup
        self._pool = ThreadPoolExecutor(topology.world_size, "rank")

    def __enter__(self) -> TorchWorld:
        world, store = ThreadWorld(self._topology.world_size), HashStore()
        self.ranks = self._on_all(
            [partial(self._make, world, store, rank=n) for n in range(self._topology.world_size)]
        )
        self._on_all([rank.start for rank in self.ranks])
        return self

    def __exit__(self, *failure: object) -> None:
        self._on_all([rank.stop for rank in self.ranks])
        self._pool.shutdown()

    def generate(self, requests: Sequence[AddRequest]) -> list[Stream]:
        """Run requests to their ends; their streams in order."""
        self.frontend.put(*requests)
        received = self.frontend.received
        for _ in range(MAX_ROUNDS):
            self.round()
            if all(received[request.request_id].finish for request in requests):
                break
        while any(len(rank.loop.requests) for rank in self.ranks):
            self.round()
        return [received[request.request_id] for request in requests]

    def ask(self, name: str, **arguments: object) -> ControlReply:
        """Ask for a control operation and run rounds until it is answered."""
        replies = self.frontend.received.replies
        before = len(replies)
        self.frontend.put(ControlRequest(name, arguments))
        for _ in range(MAX_ROUNDS):
            self.round()
            if len(replies) > before:
                return replies[before]
        raise AssertionError(f"{name} was not answered after {MAX_ROUNDS} rounds")

    def round(self) -> None:
        """Run one round on every rank."""
        self._on_all([rank.loop.round for rank in self.ranks])

    def _make(self, world: ThreadWorld, store: HashStore, *, rank: int) -> Rank:
        seat = DeviceSeat(rank, self._topology, store)
        ranks = ranks_of(self._topology, world.mesh(rank), device=seat, is_checked=True)
        around = Surroundings(
            frontend=self.frontend if rank == 0 else None,
            ranks=ranks,
            tokenizer=self._setup.tokenizer,
        )
        return build_rank(self._setup.config(), self._setup.plugins, surroundings=around)

    def _on_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        futures = [self._pool.submit(call) for call in calls]
        return [future.result() for future in futures]
