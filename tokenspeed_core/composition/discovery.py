# SPDX-License-Identifier: MIT
"""What is installed, from metadata alone: nothing of a plugin is imported to list it."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import EntryPoint, entry_points

from attrs import frozen

PLUGINS = "tokenspeed.plugins"


@frozen
class InstalledPlugin:
    """A plugin's entry point; `requires` holds its distribution's requirements as written."""

    name: str
    value: str
    distribution: str
    version: str
    requires: tuple[str, ...]
    entry_point: EntryPoint


@frozen
class Installed:
    """Every installed plugin by name, and the names that several distributions claim."""

    plugins: dict[str, InstalledPlugin]
    problems: dict[str, str]


def sorted_entry_points(group: str) -> list[EntryPoint]:
    """Return a group's entry points by name, whatever order the file system lists them in.

    An entry that a distribution shows twice (a checkout and its metadata folder) counts once.
    """
    points = entry_points(group=group)
    found = {(point.name, point.value, _distribution(point)): point for point in points}
    return [found[key] for key in sorted(found)]


def installed() -> Installed:
    """List the installed plugins; calling it again reads the metadata again."""
    by_name: dict[str, list[InstalledPlugin]] = defaultdict(list)
    for point in sorted_entry_points(PLUGINS):
        by_name[point.name].append(_described(point))
    problems = {
        name: f"plugin {name!r} is installed by several distributions: "
        + ", ".join(f"{each.distribution} {each.version} ({each.value})" for each in claims)
        for name, claims in by_name.items()
        if len(claims) > 1
    }
    return Installed({name: claims[0] for name, claims in by_name.items()}, problems)


def _distribution(point: EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name


def _described(point: EntryPoint) -> InstalledPlugin:
    if point.dist is None:
        return InstalledPlugin(point.name, point.value, "", "", (), point)
    metadata = point.dist.metadata  # read anew by every property of `dist`
    name, version, requires = metadata["Name"], metadata["Version"], point.dist.requires or ()
    return InstalledPlugin(point.name, point.value, name, version, tuple(requires), point)
