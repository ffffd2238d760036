# SPDX-License-Identifier: MIT
"""Ways out for the numbers, by entry point: the group is `tokenspeed.metrics.exporters`.

An entry point is called as `make(registry, **settings)` and returns an `Exporter`; the settings are
its table in the configuration, `[metrics.exporters.NAME]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

GROUP = "tokenspeed.metrics.exporters"


class Exporter(Protocol):
    """Reads a registry on a thread of its own, whenever it likes."""

    def start(self) -> None:
        """Open what it needs; what it raises ends the start of the engine."""
        ...

    def stop(self) -> None:
        """Close it; called once after `start`, and after a `start` that raised."""
        ...


def unknown_exporters(names: Mapping[str, object]) -> list[str]:
    """A sentence for each name that no installed package has."""
    known = sorted(point.name for point in entry_points(group=GROUP))
    return [
        f"metrics.exporters: nothing installed is named {name!r}; there are {', '.join(known)}"
        for name in names
        if name not in known
    ]


def make_exporters(
    wanted: Mapping[str, Mapping[str, Any]], registry: CollectorRegistry
) -> list[Exporter]:
    """Make an exporter for each name, with its settings."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    exporters = []
    for name, settings in wanted.items():
        make: Callable[..., Exporter] = points[name].load()
        exporters.append(make(registry, **settings))
    return exporters
