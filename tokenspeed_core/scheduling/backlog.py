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

from tokenspeed_core.scheduling.population import Tracked


@define(kw_only=True)
class Handover:
    """What limits the requests that lie in the wheel and have not begun."""

    free_slots: int
    obtainable_pages: Callable[[], int]
    must_take_head: bool


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

    def push(self, request: Tracked) -> None:
        """Queue behind all others."""
        self._queue[request.request_id] = request

    def remove(self, request: Tracked) -> None:
        """Take a request out, wherever it stands."""
        del self._queue[request.request_id]
        self.pages_changed()

    def left_waiting(self, request: Tracked) -> None:
        """A handed over request began, or ended before it could."""
        self._unbegun_tokens -= request.num_prompt
        self._unbegun_pages -= request.pages
        self._is_refused = False

    def pages_changed(self) -> None:
        """Pages may have come free: the head that was refused is worth asking for again."""
        self._is_refused = False

    def take(self, limits: Handover) -> Iterator[Tracked]:
        """Yield the requests to hand over now, in arrival order."""
        if self.tokens_per_plan is None:
            while self._queue:
                yield self._pop()
            return
        if limits.must_take_head and self._queue:
            yield self._pop()
            limits.free_slots -= 1
        if self._is_refused or limits.free_slots <= 0:
            return
        yield from self._take_fitting(limits, self.tokens_per_plan)

    def _take_fitting(self, limits: Handover, tokens_per_plan: int) -> Iterator[Tracked]:
        obtainable: int | None = None
        while self._queue and limits.free_slots > 0 and self._unbegun_tokens < tokens_per_plan:
            if obtainable is None:
                obtainable = limits.obtainable_pages()
            head = next(iter(self._queue.values()))
            if head.pages > obtainable - self._unbegun_pages:
                self._is_refused = True
                return
            limits.free_slots -= 1
            yield self._pop()

    def _pop(self) -> Tracked:
        _, request = self._queue.popitem(last=False)
        self._unbegun_tokens += request.num_prompt
        self._unbegun_pages += request.pages
        return request
