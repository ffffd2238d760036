# SPDX-License-Identifier: MIT
"""A rank's part in its deployment: its groups, and how it leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from attrs import define

from tokenspeed_core.ranks.device_seat import DeviceSeat
from tokenspeed_hookspecs import Ranks


@define(eq=False)
class Whereabouts:
    """Where a rank is, in words; `ask` is set once there is a loop to ask."""

    ask: Callable[[], str] | None = None

    def __call__(self) -> str:
        """The place."""
        return "before its first round" if self.ask is None else self.ask()


class Membership(Ranks, Protocol):
    """The groups, which end with this rank."""

    @property
    def where(self) -> Whereabouts:
        """What checked exchanges say of this rank's place."""
        ...

    @property
    def seat(self) -> DeviceSeat | None:
        """Where this rank's data plane meets the others; None if it is alone, or has no way."""
        ...

    def on_end(self, hear: Callable[[str], None]) -> None:
        """Have somebody hear, maybe on another thread, that another rank is gone."""
        ...

    def fail(self, reason: str) -> None:
        """Tell the other ranks why this one ends."""
        ...

    def close(self) -> None:
        """Leave the deployment; calling it again does nothing."""
        ...
