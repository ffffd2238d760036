# SPDX-License-Identifier: MIT
"""What a server tells of itself while it starts and stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ServeStatus(Protocol):
    """Hears of a server's life, in this order; `log_line` may come at any time."""

    def loading(self, model: str, *, engine_pids: Sequence[int]) -> None:
        """The engines' processes run, and load the model."""

    def ready(self, url: str) -> None:
        """Clients can connect."""

    def stopping(self, drain_timeout_s: float) -> None:
        """The front end takes no more requests; those that run have so long to end."""

    def log_line(self, text: str) -> None:
        """An engine wrote this to its log."""
