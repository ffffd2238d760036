# SPDX-License-Identifier: MIT
"""Messages that could not be used: counted, and logged now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

SILENCE_S = 10.0
SHOWN_FRAMES = 4
SHOWN_BYTES = 16


class DroppedMessages:
    """`count` of all of them; a warning at most every ten seconds."""

    def __init__(
        self, log: logging.Logger, clock: Callable[[], float], *, source: str = "the front end"
    ) -> None:
        self.count = 0
        self._source = source
        self._log = log
        self._clock = clock
        self._told = 0
        self._told_at: float | None = None

    def note(self, frames: Sequence[bytes], problem: object) -> None:
        """Count a message and say what is wrong with it, unless one was told of just now."""
        self.count += 1
        now = self._clock()
        if self._told_at is not None and now - self._told_at < SILENCE_S:
            return
        sizes = ", ".join(str(len(frame)) for frame in frames[:SHOWN_FRAMES])
        head = b"".join(frames[:SHOWN_FRAMES])[:SHOWN_BYTES].hex(" ")
        self._log.warning(
            "dropped %d message(s) from %s; the last has %d frame(s) of %s bytes starting with "
            "%s: %s",
            self.count - self._told,
            self._source,
            len(frames),
            sizes or "no",
            head or "nothing",
            problem,
        )
        self._told, self._told_at = self.count, now
