# SPDX-License-Identifier: MIT
"""Instruments for a rank that nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


class Silent:
    """A counter, gauge and histogram that keep nothing."""

    def add(self, amount: float = 1) -> None:
        """Keep nothing."""

    def set(self, value: float) -> None:
        """Keep nothing."""

    def observe(self, value: float) -> None:
        """Keep nothing."""


class NoInstruments:
    """Gives the same silent series to everyone."""

    def __init__(self) -> None:
        self._silent = Silent()

    def counter(
        self, name: str, meaning: str, *, labels: Mapping[str, str] | None = None
    ) -> Silent:
        """A series that keeps nothing."""
        return self._silent

    def gauge(self, name: str, meaning: str, *, labels: Mapping[str, str] | None = None) -> Silent:
        """A series that keeps nothing."""
        return self._silent

    def histogram(
        self,
        name: str,
        meaning: str,
        *,
        buckets: Sequence[float],
        labels: Mapping[str, str] | None = None,
    ) -> Silent:
        """A series that keeps nothing."""
        return self._silent

    def before_reading(self, settle: Callable[[], None]) -> None:
        """Nobody reads."""
