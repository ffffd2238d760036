# SPDX-License-Identifier: MIT
"""Messages that could not be read, counted by the socket they came by."""

from __future__ import annotations

import logging
from collections import Counter

from attrs import define, field


@define(eq=False)
class DroppedMessages:
    """Logs the 1st, 2nd, 4th, 8th, ... of a socket, so that a flood does not fill a disk."""

    _log: logging.Logger
    counts: Counter[str] = field(factory=Counter, init=False)

    @property
    def total(self) -> int:
        """How many there were."""
        return self.counts.total()

    def note(self, socket: str, reason: str) -> None:
        """Count one."""
        self.counts[socket] += 1
        count = self.counts[socket]
        if count & (count - 1) == 0:
            self._log.warning("dropped message %d of the %s socket: %s", count, socket, reason)
