# SPDX-License-Identifier: MIT
"""The queue in front of the wheel.

The wheel hashes every waiting prompt again in each plan and lets small requests overtake large
ones. So a request stays here until the wheel can probably begin it, and leaves in arrival order:
the head blocks what is behind it. Nothing in here depends on time or on hash order, so mirrored
ranks hand over the same requests in the same round.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from attrs import define, field

from tokenspeed_core.scheduling.population import NOTHING, Price, Tracked


@define(kw_only=True)
class Handover:
    """What one handover may take; `must_take_head` when nothing else could ever make room."""

    free_slots: int
    must_take_head: bool
    obtainable_pages: Callable[[], int]
    price: Callable[[Tracked], Price]


@define(eq=False)
class Backlog:
    """Requests in arrival order, and what was handed over and has not begun.

    `tokens_per_plan` bounds the prompt tokens that lie in the wheel unbegun; none means that
    requests wait for something else inside the wheel, so everything is handed over at once.
    """

    tokens_per_plan: int | None
    _queue: OrderedDict[str, Tracked] = field(factory=OrderedDict)
    _unbegun_tokens: int = 0
    _unbegun_pages: int = 0
    _is_refused: bool = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def may_move(self) -> bool:
        """Whether a request waits, and something changed since one was last kept back."""
        return bool(self._queue) and not self._is_refused

    def push(self, request: Tracked) -> None:
        """Queue behind all others."""
        self._queue[request.request_id] = request

    def remove(self, request: Tracked) -> None:
        """Take a request out, wherever it stands."""
        del self._queue[request.request_id]
        self.note_change()

    def left_waiting(self, request: Tracked) -> None:
        """A handed over request began, or ended before it could."""
        self._unbegun_tokens -= request.unbegun.tokens
        self._unbegun_pages -= request.unbegun.pages
        self.note_change()

    def note_change(self) -> None:
        """A slot or pages may have come free: what was kept back is worth trying again."""
        self._is_refused = False

    def take(self, limits: Handover) -> Iterator[Tracked]:
        """Yield the requests to hand over now, in arrival order."""
        if self.tokens_per_plan is None:
            while self._queue:
                yield self._pop(NOTHING)
            return
        if limits.must_take_head and self._queue:
            yield self._pop(limits.price(self._head()))
            limits.free_slots -= 1
        yield from self._take_fitting(limits, self.tokens_per_plan)

    def _take_fitting(self, limits: Handover, tokens_per_plan: int) -> Iterator[Tracked]:
        obtainable: int | None = None
        while self._queue:
            if limits.free_slots <= 0 or self._unbegun_tokens >= tokens_per_plan:
                self._is_refused = True
                return
            if obtainable is None:
                obtainable = limits.obtainable_pages()
            price = limits.price(self._head())
            if price.pages > obtainable - self._unbegun_pages:
                self._is_refused = True
                return
            limits.free_slots -= 1
            yield self._pop(price)

    def _head(self) -> Tracked:
        return next(iter(self._queue.values()))

    def _pop(self, price: Price) -> Tracked:
        _, request = self._queue.popitem(last=False)
        request.unbegun = price
        self._unbegun_tokens += price.tokens
        self._unbegun_pages += price.pages
        return request
