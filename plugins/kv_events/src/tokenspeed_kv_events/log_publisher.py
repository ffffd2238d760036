# SPDX-License-Identifier: MIT
"""Publishers without a socket: into the log, to see what happens, and to nowhere."""

from __future__ import annotations

from collections import Counter

from tokenspeed_kv_events.publishers import Batch, PublisherSettings


class LogPublisher:
    """A line a batch: how many events of each kind, and no token of anybody's prompt."""

    def __init__(self, settings: PublisherSettings) -> None:
        self._log = settings.log

    def publish(self, batch: Batch) -> None:
        """Write the line."""
        kinds = Counter(type(event).__name__ for event in batch.events)
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        self._log.info("kv events %d: %s", batch.sequence, told)

    def attend(self) -> bool:
        """Nobody asks."""
        return False

    def close(self) -> None:
        """There is nothing to close."""


class NullPublisher(LogPublisher):
    """Forgets every batch."""

    def publish(self, batch: Batch) -> None:
        """Forget it."""
