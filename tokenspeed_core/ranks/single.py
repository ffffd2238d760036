# SPDX-License-Identifier: MIT
"""A rank that is alone: its group agrees with itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenspeed_core.ranks.membership import Whereabouts


class SingleGroup:
    """A group of one; every verb returns what it was given."""

    size = 1
    index = 0

    def agree_min(self, values: Sequence[int]) -> list[int]:
        """The values themselves."""
        return list(values)

    def agree_max(self, values: Sequence[int]) -> list[int]:
        """The values themselves."""
        return list(values)

    def total(self, values: Sequence[int]) -> list[int]:
        """The values themselves."""
        return list(values)

    def gather(self, payload: bytes) -> list[bytes]:
        """The one member's payload."""
        return [payload]

    def broadcast(self, source: int, payload: bytes) -> bytes:
        """The payload; the one member is the source."""
        assert source == 0, f"a group of one has no member {source}"
        return payload


class SingleRank:
    """The only rank of its world: a replica of one, and no other group."""

    rank = 0
    world_size = 1
    pp = None
    dp = None
    ep = None
    seat = None

    def __init__(self) -> None:
        self.replica = SingleGroup()
        self.where = Whereabouts()

    def on_end(self, hear: Callable[[str], None]) -> None:
        """There is nobody whose end could be heard of."""

    def fail(self, reason: str) -> None:
        """There is nobody to tell."""

    def close(self) -> None:
        """There is nothing to leave."""
