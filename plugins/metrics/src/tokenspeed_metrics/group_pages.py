# SPDX-License-Identifier: MIT
"""The pages of each cache group, as the scheduler counts them.

It walks what is cached to tell what could be given out, so it is asked once a second at most.
"""

from __future__ import annotations

from typing import Any

from tokenspeed_hookspecs import Engine
from tokenspeed_metrics.catalogue import Catalogue

EVERY_S = 1.0


class GroupPages:
    """Two gauges a group; none with a scheduler that does not count pages by group."""

    def __init__(self, catalogue: Catalogue, engine: Engine) -> None:
        self._native: Any = engine.scheduler.native
        self._clock = engine.clock
        self._taken_at = float("-inf")
        names = [group.name for group in engine.data_plane.cache_groups]
        if not hasattr(self._native, "cache_group_available_pages"):
            names = []
        self._gauges = {
            name: [
                catalogue.gauge(
                    "kv_group_pages",
                    "A cache group's pages: all of them, and those that could be given out.",
                    labels={"group": name, "state": state},
                )
                for state in ("total", "available")
            ]
            for name in names
        }

    def take(self) -> None:
        """Read them, unless that was done a moment ago."""
        now = self._clock()
        if now - self._taken_at < EVERY_S:
            return
        self._taken_at = now
        for name, (total, available) in self._gauges.items():
            total.set(self._native.cache_group_total_pages(name))
            available.set(self._native.cache_group_available_pages(name))
