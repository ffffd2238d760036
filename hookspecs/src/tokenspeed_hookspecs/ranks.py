# SPDX-License-Identifier: MIT
"""The ranks one loop agrees with every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Group(Protocol):
    """Some ranks in a fixed order; every verb is called on all members or on none."""

    @property
    def size(self) -> int:
        """How many ranks it has."""
        ...

    @property
    def index(self) -> int:
        """This rank's place in it."""
        ...

    def agree_min(self, values: Sequence[int]) -> list[int]:
        """The element-wise minimum over the members."""
        ...

    def agree_max(self, values: Sequence[int]) -> list[int]:
        """The element-wise maximum over the members."""
        ...

    def total(self, values: Sequence[int]) -> list[int]:
        """The element-wise sum over the members."""
        ...

    def gather(self, payload: bytes) -> list[bytes]:
        """Every member's payload, in member order."""
        ...

    def broadcast(self, source: int, payload: bytes) -> bytes:
        """The source member's payload, on every member."""
        ...


class Ranks(Protocol):
    """The named groups of a rank; a group that does not apply is None."""

    @property
    def rank(self) -> int:
        """This rank in the world."""
        ...

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        ...

    @property
    def replica(self) -> Group:
        """The ranks that mirror one scheduler; member 0 owns the frontend."""
        ...

    @property
    def pp(self) -> Group | None:
        """One position's pipeline stages, in stage order; the last samples."""
        ...

    @property
    def dp(self) -> Group | None:
        """Every rank, with attention data parallelism: their forwards run in step."""
        ...

    @property
    def ep(self) -> Group | None:
        """This rank's expert-parallel group."""
        ...
