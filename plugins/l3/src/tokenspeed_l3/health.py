# SPDX-License-Identifier: MIT
"""Whether the store is worth asking: after several failures in a row it is left alone for a while.

An answer is not a failure, whatever it says: a miss, a damaged object and a full store are answers.
"""

from __future__ import annotations

from enum import Enum

from attrs import define


class HealthState(Enum):
    """CLOSED: asked. OPEN: not asked. HALF_OPEN: one operation is on trial."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


@define(eq=False)
class Health:
    """The state, and what moves it. Times in microseconds of one clock; not for several threads
    at once."""

    failure_threshold: int
    recovery_us: int
    state: HealthState = HealthState.CLOSED
    _failures: int = 0
    _opened_us: int = 0

    @property
    def num_failures(self) -> int:
        """Failures since the last answer."""
        return self._failures

    def would_ask(self, now_us: int) -> bool:
        """Whether an operation that begins now would reach the store."""
        if self.state is HealthState.OPEN:
            return now_us - self._opened_us >= self.recovery_us
        return self.state is HealthState.CLOSED

    def asks(self, now_us: int) -> bool:
        """Begin an operation: True if it goes to the store, perhaps as the one on trial."""
        if not self.would_ask(now_us):
            return False
        if self.state is HealthState.OPEN:
            self.state = HealthState.HALF_OPEN
        return True

    def succeeded(self) -> None:
        """The store answered."""
        self.state, self._failures = HealthState.CLOSED, 0

    def open(self, now_us: int) -> None:
        """Leave the store alone from now on."""
        self.state, self._opened_us = HealthState.OPEN, now_us

    def failed(self, now_us: int) -> bool:
        """The store failed; True if that opens the health."""
        self._failures += 1
        is_trial = self.state is HealthState.HALF_OPEN
        if not is_trial and self._failures < self.failure_threshold:
            return False
        was_open = self.state is not HealthState.CLOSED
        self.open(now_us)
        return not was_open
