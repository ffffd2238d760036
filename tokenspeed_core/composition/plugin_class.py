# SPDX-License-Identifier: MIT
"""One candidate, imported and checked: everything wrong with it in one list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from attrs import frozen

from tokenspeed_core.composition.api_range import api_problems
from tokenspeed_core.composition.selection import Candidate
from tokenspeed_core.composition.signatures import signature_problems
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.config.tables import fields, from_table, to_table
from tokenspeed_core.errors import CompositionError
from tokenspeed_hookspecs import Plugin

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
TAKEN = frozenset({"engine", "scheduler", "data_plane", "plugins", "optional", "without"})
IN_PYTHON = "given in Python"


@frozen
class LoadedPlugin:
    """A plugin that passed its checks, with the options its instances get."""

    name: str
    version: str
    source: str
    is_required: bool
    plugin: type[Plugin]
    options: Any
    instance: Plugin | None = None

    def options_table(self) -> dict[str, Any]:
        """Return the options with their defaults."""
        return to_table(self.options) if attrs.has(type(self.options)) else {}


def load(candidate: Candidate, table: Mapping[str, Any]) -> LoadedPlugin:
    """Import and check a candidate; CompositionError lists its problems, each with its name."""
    try:
        return _load(candidate, table)
    except CompositionError as error:
        mark = f"plugin {candidate.name!r}: "
        raise CompositionError([mark + problem for problem in error.problems]) from error


def _load(candidate: Candidate, table: Mapping[str, Any]) -> LoadedPlugin:
    found = _found(candidate)
    plugin = _class_of(found)
    source = candidate.source
    problems = _name_problems(plugin, candidate)
    problems += api_problems(plugin.api, source.requires if source else ())
    problems += _attribute_problems(plugin)
    problems += signature_problems(plugin)
    instance = found if isinstance(found, Plugin) else None
    options = _options(plugin, instance, table={**table, **candidate.options}, problems=problems)
    if problems:
        raise CompositionError(problems)
    return LoadedPlugin(
        name=plugin.name,
        version=plugin.version or (source.version if source else ""),
        source=f"{source.distribution} {source.version}" if source else IN_PYTHON,
        is_required=candidate.is_required,
        plugin=plugin,
        options=options,
        instance=instance,
    )


def find_class(candidate: Candidate) -> type[Plugin]:
    """Import a candidate's class; CompositionError says why that fails."""
    return _class_of(_found(candidate))


def _class_of(found: Any) -> type[Plugin]:
    plugin = found if isinstance(found, type) else type(found)
    if not issubclass(plugin, Plugin):
        raise CompositionError(
            [f"expected a subclass of tokenspeed_hookspecs.Plugin, got {found!r}"]
        )
    return plugin


def _found(candidate: Candidate) -> Any:
    if candidate.source is None:
        return candidate.given
    try:
        return candidate.source.entry_point.load()
    except (Exception, SystemExit) as error:
        raise CompositionError(
            [f"{candidate.source.value} cannot be imported: {type(error).__name__}: {error}"]
        ) from error


def _name_problems(plugin: type[Plugin], candidate: Candidate) -> list[str]:
    name = getattr(plugin, "name", None)
    if not isinstance(name, str):
        return [f'class {plugin.__qualname__} has no name; set `name = "..."`']
    if not NAME.fullmatch(name):
        return [f"its name {name!r} is not lower-case words joined by _"]
    if name in TAKEN:
        return [f"its name {name!r} is a table or key of the engine's own configuration"]
    if candidate.source is not None and name != candidate.name:
        return [f"its entry point is {candidate.name!r}, its class is named {name!r}"]
    return []


def _attribute_problems(plugin: type[Plugin]) -> list[str]:
    wanted: Mapping[str, Callable[[Any], bool]] = {
        "after": _is_names,
        "features": _is_names,
        "version": lambda value: isinstance(value, str),
        "shorthand": lambda value: isinstance(value, str),
        "Options": attrs.has,
    }
    expected = {"version": "a text", "shorthand": "a text", "Options": "an attrs class"}
    return [*_shorthand_problems(plugin)] + [
        f"{key}: expected {expected.get(key, 'a tuple of names')}, got {getattr(plugin, key)!r}"
        for key, is_right in wanted.items()
        if not is_right(getattr(plugin, key))
    ]


def _shorthand_problems(plugin: type[Plugin]) -> list[str]:
    option, options = getattr(plugin, "shorthand", ""), plugin.Options
    if not isinstance(option, str) or not option or not attrs.has(options):
        return []
    known = list(fields(options))
    return [] if option in known else [f"shorthand: {unknown('option', option, known=known)}"]


def _is_names(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(each, str) for each in value)


def _options(
    plugin: type[Plugin], instance: Plugin | None, *, table: Mapping[str, Any], problems: list[str]
) -> Any:
    """Return the options; an instance made in Python has its own."""
    if instance is not None:
        if table:
            problems.append("is an instance already; its options cannot be set")
        return getattr(instance, "options", None)
    if not attrs.has(plugin.Options):
        return None
    try:
        return from_table(plugin.Options, table, place=getattr(plugin, "name", "options"))
    except CompositionError as error:
        problems.extend(error.problems)
    return None
