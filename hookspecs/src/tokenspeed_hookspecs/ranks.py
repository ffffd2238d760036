# SPDX-License-Identifier: MIT
"""The ranks one loop agrees with every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Group(Protocol):
    """Some ranks in a fixed order; every verb is called on all members or on none."""

    @property
    def size(self) -> int: ...
    @property
    def index(self) -> int: ...
    def agree_min(self, values: Sequence[int]) -> list[int]: ...
    def agree_max(self, values: Sequence[int]) -> list[int]: ...
    def total(self, values: Sequence[int]) -> list[int]: ...
    def gather(self, payload: bytes) -> list[bytes]:
        """Every member's payload, in member order."""
        ...

    def broadcast(self, source: int, payload: bytes) -> bytes: ...


class Ranks(Protocol):
    """The named groups of a rank; a group that does not apply is None."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
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
