# SPDX-License-Identifier: MIT
"""Ranks as threads of one process: queues in place of sockets."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from attrs import define, field

from tokenspeed_core.ranks.mesh import RankError

POLL_S = 0.05


@define(eq=False)
class ThreadWorld:
    """What the ranks of a process share: a queue for each ordered pair, and why a rank ended."""

    size: int
    limit_s: float = 60.0
    queues: dict[tuple[int, int], queue.SimpleQueue[bytes]] = field(init=False)
    ended: dict[int, str] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        pairs = ((a, b) for a in range(self.size) for b in range(self.size))
        self.queues = {pair: queue.SimpleQueue() for pair in pairs}

    def mesh(self, rank: int) -> ThreadMesh:
        """The mesh of one rank."""
        return ThreadMesh(self, rank)


@define(eq=False)
class ThreadMesh:
    """One rank's end."""

    world: ThreadWorld
    rank: int
    on_end: Callable[[str], None] = field(default=lambda _: None, init=False)

    def send(self, peer: int, payload: bytes) -> None:
        """Put a payload into the pair's queue."""
        self.world.queues[self.rank, peer].put(payload)

    def receive(self, peer: int) -> bytes:
        """The pair's next payload. RankError: the peer ended, or the limit passed."""
        waiting = self.world.queues[peer, self.rank]
        until = time.monotonic() + self.world.limit_s
        while True:
            try:
                return waiting.get(timeout=POLL_S)
            except queue.Empty:
                self._check(peer, until)

    def fail(self, reason: str) -> None:
        """Leave the reason for the peers."""
        self.world.ended.setdefault(self.rank, reason)

    def close(self) -> None:
        """Nothing more will come of this rank."""
        self.world.ended.setdefault(self.rank, "it was closed")

    def _check(self, peer: int, until: float) -> None:
        if peer in self.world.ended:
            # What it sent before its end may have come in since the wait ended.
            if self.world.queues[peer, self.rank].empty():
                raise RankError(f"rank {peer} ended: {self.world.ended[peer]}")
        elif time.monotonic() > until:
            raise RankError(
                f"rank {peer} sent nothing to rank {self.rank} for {self.world.limit_s:g} s; it "
                "hangs, or left the order of exchanges"
            )
