# SPDX-License-Identifier: MIT
"""What a long step tells of itself while it runs; silent unless someone listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of one step at a time, from the thread that runs it."""

    def start(self, label: str, total_bytes: int | None = None) -> None:
        """A step begins; without a total its length is not known."""

    def advance(self, num_bytes: int) -> None:
        """So many more bytes of the step are done."""

    def finish(self) -> None:
        """The step is over."""


class Silent:
    """Tells nobody."""

    def start(self, label: str, total_bytes: int | None = None) -> None:
        """Ignore the step."""

    def advance(self, num_bytes: int) -> None:
        """Ignore the bytes."""

    def finish(self) -> None:
        """Ignore the end."""
