# SPDX-License-Identifier: MIT
"""What must run in the same round on every data-parallel rank.

Every round on every rank, even with nothing queued: with several ranks it is a collective.
"""

from __future__ import annotations

from collections import deque

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.controls import Controls
from tokenspeed_hookspecs import ControlReply, GatedOperation, Group

Queue = deque[GatedOperation]


class Gate:
    """Two queues; one blocking operation a round, the frontend's first."""

    def __init__(self, world: Group | None, controls: Controls) -> None:
        self._world = world
        self._controls = controls
        self._requested: Queue = deque()
        self._internal: Queue = deque()

    @property
    def is_busy(self) -> bool:
        """Whether an operation is still to run; it may write what a release would free."""
        return bool(self._requested or self._internal)

    def enqueue(self, operation: GatedOperation) -> None:
        """Queue a plugin's own operation. ValueError for a code below 1."""
        self._internal.append(_checked(operation))

    def enqueue_requested(self, operation: GatedOperation) -> None:
        """Queue an operation the frontend asked for."""
        self._requested.append(_checked(operation))

    def run(self) -> None:
        """Run the operation every rank has at its head, if there is one."""
        queue = self._ready()
        if queue is None:
            return
        reply = _run(queue.popleft())
        if reply is not None:
            self._controls.reply(reply)

    def _ready(self) -> Queue | None:
        heads = [_head(self._requested), _head(self._internal)]
        if self._world is not None:
            heads = self._agree(self._world, heads)
        if heads[0]:
            return self._requested
        return self._internal if heads[1] else None

    def _agree(self, world: Group, heads: list[int]) -> list[int]:
        """Keep a head only if every rank has one; then all must hold the same operation.

        A queue's row is (-1 if it has a head, code, -code): the MAX is -1 only if all have one, and
        the codes are equal only if the MAX of the code is minus the MAX of its negative.
        """
        row: list[int] = []
        for code in heads:
            row += [-1 if code else 0, code, -code]
        reduced = world.agree_max(row)
        agreed = []
        for at, queue in ((0, "frontend"), (3, "internal")):
            everyone, low, high = reduced[at] == -1, reduced[at + 1], -reduced[at + 2]
            if everyone and low != high:
                raise EngineError(
                    f"data-parallel ranks hold different {queue} operations at their heads (codes "
                    f"{high} to {low}); every rank must be given the same ones in the same order"
                )
            agreed.append(low if everyone else 0)
        return agreed


def _run(operation: GatedOperation) -> ControlReply | None:
    """Run an operation; what it raises ends the engine, with the operation's name on it."""
    try:
        return operation.run()
    except Exception as cause:
        told = f"{type(cause).__name__}: {cause}"
        raise EngineError(f"gated operation {operation.name!r} failed: {told}") from cause


def _head(queue: Queue) -> int:
    return queue[0].code if queue else 0


def _checked(operation: GatedOperation) -> GatedOperation:
    if operation.code < 1:
        raise ValueError(
            f"gated operation {operation.name!r} has code {operation.code}; codes start at 1, "
            "since 0 means an empty queue"
        )
    return operation
