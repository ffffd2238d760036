# SPDX-License-Identifier: MIT
"""What a key may do, and how much of it is left."""

from __future__ import annotations

from attrs import define, field, frozen


@frozen
class KeyLimit:
    """One key's limits; a number of 0 is none."""

    priority: int = field(default=5, metadata={"help": "lower goes first"})
    per_second: float = field(default=0.0, metadata={"help": "requests a second"})
    burst: int = field(default=1, metadata={"help": "requests at once after a rest"})
    at_once: int = field(default=0, metadata={"help": "requests that run together"})
    waiting: int = field(default=0, metadata={"help": "requests that may wait"})


@define
class Bucket:
    """The requests a key may send now: it fills with time, up to the burst."""

    limit: KeyLimit
    filled_at: float
    level: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.level = float(self.limit.burst)

    def available(self, now: float) -> int:
        """How many requests may go at `now`, in seconds."""
        if not self.limit.per_second:
            return 1_000_000
        gained = (now - self.filled_at) * self.limit.per_second
        self.level = min(float(self.limit.burst), self.level + gained)
        self.filled_at = now
        return int(self.level)

    def take(self) -> None:
        """One request goes. Another rank's clock may be ahead, so the level may fall below 0."""
        self.level -= 1
