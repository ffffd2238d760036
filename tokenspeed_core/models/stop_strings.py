# SPDX-License-Identifier: MIT
"""Cutting a growing text at the first stop string, without showing any part of it."""

from __future__ import annotations

from collections.abc import Sequence

from tokenspeed_core.models.errors import TextError


class StopStrings:
    """Passes text on, holding back what may still become a stop string.

    The stop string that is complete first wins (the longer one of two that end
    together), so the cut does not depend on how the text was chopped up.
    """

    __slots__ = ("_held", "_longest", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise TextError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text; return what is now certain to stand before any stop string."""
        if self.matched is not None:
            return ""
        self._held += text
        if (end := self._first_end()) is not None:
            return self._cut(end)
        border = len(self._held) - self._open_length()
        passed, self._held = self._held[:border], self._held[border:]
        return passed

    def flush(self) -> str:
        """Return what was held back: the text is over, so it became no stop string."""
        passed, self._held = self._held, ""
        return passed

    def _first_end(self) -> int | None:
        found = ((self._held.find(stop), len(stop)) for stop in self._stops)
        return min((start + length for start, length in found if start >= 0), default=None)

    def _cut(self, end: int) -> str:
        ended = self._held[:end]
        self.matched = max((stop for stop in self._stops if ended.endswith(stop)), key=len)
        self._held = ""
        return ended.removesuffix(self.matched)

    def _open_length(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
