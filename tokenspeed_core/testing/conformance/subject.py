# SPDX-License-Identifier: MIT
"""The plugin under test: its class, its options, and requests that mean something to it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from attrs import field, frozen

from tokenspeed_core.composition.discovery import InstalledPlugin
from tokenspeed_core.composition.plugin_class import find_class
from tokenspeed_core.composition.selection import Candidate, PluginChoice
from tokenspeed_core.errors import CompositionError
from tokenspeed_hookspecs import Plugin

SAMPLES = "tokenspeed.samples"
Features = Mapping[str, object]


@frozen
class Address:
    """Where another process finds a class: its module, the file of it, and its name there."""

    module: str
    file: str
    name: str


@frozen(kw_only=True)
class Subject:
    """`features` are tried on requests in turn; a request without any is always among them.
    `patience_s` is how long the plugin's own threads may take for what is waited for, `seeds` how
    many simulations it must pass."""

    plugin: type[Plugin]
    options: Mapping[str, Any] = field(factory=dict)
    features: Sequence[Features] = ()
    source: InstalledPlugin | None = None
    patience_s: float = 3.0
    seeds: int = 6

    @property
    def name(self) -> str:
        """The plugin's name."""
        return str(getattr(self.plugin, "name", self.plugin.__qualname__))

    @property
    def choice(self) -> PluginChoice:
        """The plugin as an engine is given it."""
        return PluginChoice(self.plugin, self.options)

    @property
    def candidate(self) -> Candidate:
        """The plugin as composition checks it."""
        given = None if self.source is not None else self.plugin
        return Candidate(self.name, True, self.source, given)

    @property
    def kinds(self) -> list[Features]:
        """The kinds of requests to send."""
        return [{}, *(each for each in self.features if each)]

    @property
    def address(self) -> Address | None:
        """How a second process imports the class; None for one made inside a function."""
        name, module = self.plugin.__qualname__, self.plugin.__module__
        file = inspect.getsourcefile(self.plugin)
        if file is None or "<locals>" in name or module == "__main__":
            return None
        return Address(module, file, name)


def installed_subject(
    source: InstalledPlugin, *, options: Mapping[str, Any], features: Sequence[Features] = ()
) -> Subject:
    """An installed plugin; without `features` its package's own samples are used.

    A package may offer some: an entry point of its plugin's name in `tokenspeed.samples`, a
    function that returns a list of feature mappings. CompositionError: it cannot be imported.
    """
    plugin = find_class(Candidate(source.name, True, source))
    found = list(features) or _samples(source.name)
    return Subject(plugin=plugin, options=options, features=found, source=source)


def _samples(name: str) -> list[Features]:
    for point in entry_points(group=SAMPLES, name=name):
        try:
            offered = point.load()()
        except Exception as error:
            raise CompositionError(
                [
                    f"{SAMPLES} {name!r}: {point.value} gives no features; remove the entry point "
                    f"if there are none: {type(error).__name__}: {error}"
                ]
            ) from error
        if not isinstance(offered, list | tuple):
            raise CompositionError(
                [f"{SAMPLES} {name!r}: {point.value} returned {offered!r}, not a list of features"]
            )
        return list(offered)
    return []
