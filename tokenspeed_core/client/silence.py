# SPDX-License-Identifier: MIT
"""A killed engine says nothing, and its socket may tell nothing either: silence is the last sign.

Only one that owes chunks is missed; an idle engine has nothing to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from attrs import define, field

LOOKS_A_LIMIT = 20
LONGEST_NAP_S = 5.0


@define(eq=False)
class SilenceWatch:
    """Calls `fail` with an engine's place and the reason when it was silent for too long.

    `num_owed` says how many streams an engine has to go on with. Runs between `start` and `stop`.
    """

    _limit_s: float
    _num_engines: int
    _num_owed: Callable[[int], int]
    _fail: Callable[[int, str], None]
    _heard: list[float] = field(init=False)
    _next: asyncio.TimerHandle | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._heard = [0.0] * self._num_engines

    def start(self) -> None:
        """Watch from now on."""
        self._heard = [self._now()] * self._num_engines
        self._plan()

    def stop(self) -> None:
        """Watch no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def heard(self, position: int) -> None:
        """An engine said something."""
        self._heard[position] = self._now()

    def _look(self) -> None:
        now = self._now()
        self._plan()
        for position, heard in enumerate(self._heard):
            if not self._num_owed(position):
                self._heard[position] = now
            elif now - heard > self._limit_s:
                running = f"with {self._num_owed(position)} requests running"
                self._fail(position, f"it was silent for {self._limit_s} s {running}")
                return

    def _plan(self) -> None:
        nap = min(LONGEST_NAP_S, self._limit_s / LOOKS_A_LIMIT)
        self._next = asyncio.get_running_loop().call_later(nap, self._look)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
