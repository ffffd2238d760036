# SPDX-License-Identifier: MIT
"""Ranks as threads of which one runs at a time, and the mesh over which they hand over.

A rank runs until it waits for a payload that is not there, or is done. Who is next is drawn from
the seed, so one seed is one interleaving, and when everyone waits for someone it is told at once.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from attrs import define, field

from tokenspeed_core.ranks.mesh import RankError
from tokenspeed_core.testing.simulation.faults import PlantedError, Saboteur

T = TypeVar("T")
Result = tuple[object, BaseException | None]


@define(eq=False)
class Baton:
    """`run` lets each rank act once, one after the other or interleaved; errors are returned."""

    size: int
    rng: random.Random
    queues: dict[tuple[int, int], deque[bytes]] = field(init=False)
    ended: dict[int, str] = field(factory=dict, init=False)
    listeners: dict[int, Callable[[str], None]] = field(factory=dict, init=False)
    _turns: list[threading.Semaphore] = field(init=False)
    _waiting: dict[int, int] = field(factory=dict, init=False)
    _active: set[int] = field(factory=set, init=False)
    _pool: ThreadPoolExecutor = field(init=False)

    def __attrs_post_init__(self) -> None:
        pairs = ((a, b) for a in range(self.size) for b in range(self.size))
        self.queues = {pair: deque() for pair in pairs}
        self._turns = [threading.Semaphore(0) for _ in range(self.size)]
        self._pool = ThreadPoolExecutor(self.size, "simulated-rank")

    def run(self, acts: Sequence[Callable[[], T]]) -> list[Result]:
        """Let every rank act; a result or an error each."""
        if self.size == 1:
            return [_attempt(acts[0])]
        self._active = set(range(self.size))
        futures = [self._pool.submit(self._act, rank, act) for rank, act in enumerate(acts)]
        self._pass_on()
        return [future.result() for future in futures]

    def wait(self, rank: int, peer: int) -> None:
        """Let others run until the peer's payload is there. RankError: it never will be."""
        while not self.queues[peer, rank]:
            if peer in self.ended:
                raise RankError(f"rank {peer} ended: {self.ended[peer]}")
            if peer not in self._active:
                raise RankError(f"rank {peer} is done with its round and sent rank {rank} nothing")
            self._waiting[rank] = peer
            self._pass_on()
            self._turns[rank].acquire()
            del self._waiting[rank]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _act(self, rank: int, act: Callable[[], T]) -> Result:
        self._turns[rank].acquire()
        result = _attempt(act)
        if result[1] is not None:
            self.ended.setdefault(rank, f"{type(result[1]).__name__}: {result[1]}")
            for other, hear in self.listeners.items():
                if other != rank:
                    hear(f"rank {rank} ended: {self.ended[rank]}")
        self._active.discard(rank)
        self._pass_on()
        return result

    def _pass_on(self) -> None:
        """Wake one who can go on; if nobody can, whoever comes first hears of it."""
        able = [rank for rank in sorted(self._active) if self._can_run(rank)]
        if able:
            self._turns[self.rng.choice(able)].release()
        elif self._active:
            rank = min(self._active)
            self.ended.setdefault(self._waiting[rank], "all ranks wait for each other")
            self._turns[rank].release()

    def _can_run(self, rank: int) -> bool:
        peer = self._waiting.get(rank)
        if peer is None:
            return True
        return bool(self.queues[peer, rank]) or peer in self.ended or peer not in self._active


@define(eq=False)
class BatonMesh:
    """One rank's end of the mesh, with the faults that are on it."""

    baton: Baton
    rank: int
    saboteur: Saboteur
    on_end: Callable[[str], None] = field(default=lambda _: None, init=False)

    def send(self, peer: int, payload: bytes) -> None:
        """Leave a payload, unless a fault comes with it."""
        if self.saboteur.strikes("rank gone"):
            raise PlantedError("rank gone")
        self.saboteur.may_dawdle("payload slow")
        waiting = self.baton.queues[self.rank, peer]
        if self.saboteur.strikes("payload lost"):
            return
        if self.saboteur.strikes("payload garbled"):
            # No msgpack begins so, no place does, and no row of numbers has such a length.
            payload = b"\xc1" + payload
        waiting.append(payload)
        if self.saboteur.strikes("payload doubled"):
            waiting.append(payload)

    def receive(self, peer: int) -> bytes:
        """Take the next payload, and let others run until it is there."""
        self.baton.wait(self.rank, peer)
        return self.baton.queues[peer, self.rank].popleft()

    def fail(self, reason: str) -> None:
        """Leave the reason for the peers."""
        self.baton.ended.setdefault(self.rank, reason)

    def close(self) -> None:
        """Nothing more will come."""
        self.baton.ended.setdefault(self.rank, "it was closed")


def _attempt(act: Callable[[], T]) -> Result:
    try:
        return act(), None
    except Exception as error:
        return None, error
