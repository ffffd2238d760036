# SPDX-License-Identifier: MIT
"""What must run in the same round on every data-parallel rank: flushes and blocking operations.

Every round on every rank, even with nothing queued: with several ranks it is a collective.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.controls import Controls, done, refused
from tokenspeed_core.loop.rank_reasons import reason_of_all
from tokenspeed_hookspecs import ControlReply, GatedOperation, Group, Ranks, Round, SchedulerDriver

FLUSH = "flush_cache"
CACHE_IN_USE = (
    "the cache was not cleared: requests run, or cache operations are open; retry once they are "
    "done (pause with mode wait or abort to have none)"
)
NOT_FORGOTTEN = (
    "the cache was not cleared: what a plugin keeps of it elsewhere could not be removed, and the "
    "log says why (is a store down?); nothing was changed, so retry once that is mended"
)
NOT_FLUSHED = (
    "cache flush failed, so nothing was changed; retry once open cache operations are done and no "
    "request runs or is suspended (retracted or restoring), or ask without flush_cache"
)

# Far more than what is left of a request ever took; a cache that stays pinned is then refused.
SETTLING_ROUNDS = 1000

Queue = deque[GatedOperation]


@frozen
class _Agreed:
    """What holds for every rank now; a head's code is 0 where some rank has none. `is_settling`:
    the cache of some rank is pinned, and soon will not be."""

    wants_flush: bool
    is_settling: bool
    requested: int
    internal: int


class Gate:
    """Two queues; one blocking operation a round, the frontend's first.

    Where `has_requests` is false, only what the last ones left can pin the cache: rows in flight,
    write-backs, storage. That settles within a few rounds, and a flush waits for it instead of
    failing, on every rank if on one.
    """

    def __init__(
        self,
        ranks: Ranks,
        controls: Controls,
        *,
        scheduler: SchedulerDriver,
        has_requests: Callable[[], bool],
        cache_clearing: Callable[[Round], bool] | None = None,
    ) -> None:
        self._ranks = ranks
        self._controls = controls
        self._scheduler = scheduler
        self._has_requests = has_requests
        self._cache_clearing = cache_clearing
        self._rounds_settling = 0
        self._requested: Queue = deque()
        self._internal: Queue = deque()
        self._num_flushes = 0

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

    def request_flush(self) -> None:
        """Clear the cache in this round's gate, and reply."""
        self._num_flushes += 1

    def run(self, round: Round) -> None:
        """Flush if any rank wants to, and run the operation every rank has at its head."""
        if self._ranks.dp is None and not self._num_flushes and not self.is_busy:
            return
        agreed = self._agree()
        heads = [queue for queue, code in self._heads(agreed) if code]
        wants_clear = agreed.wants_flush or any(queue[0].clears_cache for queue in heads)
        waits = wants_clear and agreed.is_settling and self._rounds_settling < SETTLING_ROUNDS
        self._rounds_settling = self._rounds_settling + 1 if waits else 0
        if waits:
            heads = [queue for queue in heads if not queue[0].clears_cache]
        flushes = 0 if waits else self._num_flushes
        self._num_flushes -= flushes
        operation = heads[0].popleft() if heads else None
        wants_flush = (agreed.wants_flush and not waits) or (
            operation is not None and operation.clears_cache
        )
        reason = self._clear(round) if wants_flush else ""
        is_cleared = not reason
        for _ in range(flushes):
            self._controls.reply(done(FLUSH) if is_cleared else refused(FLUSH, reason))
        if operation is None:
            return
        if heads[0] is self._requested:
            self._answer(operation, round, is_cleared=is_cleared)
        else:
            self._run_internal(operation, is_cleared=is_cleared)

    # ---------------------------------------------------------------------------------------------

    def _agree(self) -> _Agreed:
        """Keep a head only if every rank has one; then all must hold the same operation.

        A queue's part is (-1 if it has a head, code, -code): the MAX is -1 only if all have one,
        and the codes are equal only if the MAX of the code is minus the MAX of its negative.
        """
        is_settling = not self._has_requests() and not self._scheduler.can_clear_cache()
        codes = [queue[0].code if queue else 0 for queue in (self._requested, self._internal)]
        world = self._ranks.dp
        if world is None:
            return _Agreed(self._num_flushes > 0, is_settling, *codes)
        row = [int(self._num_flushes > 0)]
        for code in codes:
            row += [-1 if code else 0, code, -code]
        return _reduced(world, [*row, int(is_settling)])

    def _heads(self, agreed: _Agreed) -> tuple[tuple[Queue, int], tuple[Queue, int]]:
        return (self._requested, agreed.requested), (self._internal, agreed.internal)

    def _clear(self, round: Round) -> str:
        """Clear the cache on every rank or on none: all agree that they can before any does, then
        that what plugins keep of it is gone. Why it was not cleared, on every rank alike."""
        if not self._converge(self._scheduler.can_clear_cache()):
            return CACHE_IN_USE
        forget = self._cache_clearing
        if forget is not None and not self._converge(forget(round)):
            return NOT_FORGOTTEN
        round.cache_cleared = self._scheduler.clear_cache()
        return "" if round.cache_cleared else CACHE_IN_USE

    def _converge(self, mine: bool) -> bool:
        """Whether every rank of the replica and of the world says yes."""
        agreed = int(mine)
        if self._ranks.replica.size > 1:
            agreed = self._ranks.replica.agree_min([agreed])[0]
        if self._ranks.dp is not None:
            agreed = self._ranks.dp.agree_min([agreed])[0]
        return bool(agreed)

    def _answer(self, operation: GatedOperation, round: Round, *, is_cleared: bool) -> None:
        """Run what the frontend asked for; it succeeds everywhere or nowhere."""
        name = operation.name
        if operation.clears_cache and not is_cleared:
            self._controls.reply(refused(name, NOT_FLUSHED))
            return
        with _named(operation):
            reply = operation.run()
        if reply is None or reply.name != name:
            raise EngineError(
                f"gated operation {name!r} was asked for by a frontend and must return a "
                f"ControlReply of that name, got {reply!r}"
            )
        is_made = self._converge(reply.success)
        with _named(operation):
            if is_made and operation.succeeded is not None:
                operation.succeeded(round)
            elif not is_made and operation.failed is not None:
                operation.failed()
        if not is_made:
            reply = ControlReply(name, False, reason_of_all(self._ranks, reply), reply.values)
        self._controls.reply(reply)

    def _run_internal(self, operation: GatedOperation, *, is_cleared: bool) -> None:
        if operation.clears_cache and not is_cleared:
            self._internal.appendleft(operation)
            return
        with _named(operation):
            reply = operation.run()
        if reply is not None:
            self._controls.reply(reply)


def _reduced(world: Group, row: list[int]) -> _Agreed:
    reduced = world.agree_max(row)
    agreed = []
    for at, queue in ((1, "frontend"), (4, "internal")):
        everyone, low, high = reduced[at] == -1, reduced[at + 1], -reduced[at + 2]
        if everyone and low != high:
            raise EngineError(
                f"data-parallel ranks hold different {queue} operations at their heads (codes "
                f"{high} to {low}); every rank must be given the same ones in the same order"
            )
        agreed.append(low if everyone else 0)
    return _Agreed(bool(reduced[0]), bool(reduced[7]), *agreed)


@contextmanager
def _named(operation: GatedOperation) -> Iterator[None]:
    """What an operation raises ends the engine, with the operation's name on it."""
    try:
        yield
    except Exception as cause:
        told = f"{type(cause).__name__}: {cause}"
        raise EngineError(f"gated operation {operation.name!r} failed: {told}") from cause


def _checked(operation: GatedOperation) -> GatedOperation:
    if operation.code < 1:
        raise ValueError(
            f"gated operation {operation.name!r} has code {operation.code}; codes start at 1, "
            "since 0 means an empty queue"
        )
    return operation
