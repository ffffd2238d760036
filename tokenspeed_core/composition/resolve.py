# SPDX-License-Identifier: MIT
"""From a configuration to the plugins of an engine, checked and in order; the same on every rank.

Every problem of every plugin is found before the first is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from tokenspeed_core.composition.ordering import order
from tokenspeed_core.composition.plugin_class import LoadedPlugin, load
from tokenspeed_core.composition.selection import Chosen, Selection, select
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.config.engine_config import RAW_TABLES, SECTIONS
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.config.values import encode
from tokenspeed_core.errors import CompositionError


@frozen
class FailedPlugin:
    """An optional plugin that is not loaded, and why."""

    name: str
    problems: tuple[str, ...]
    source: str = ""


@frozen
class Resolved:
    """The plugins of an engine in their order, and the optional ones that failed."""

    loaded: tuple[LoadedPlugin, ...]
    failed: tuple[FailedPlugin, ...]


@frozen
class Examined:
    """Everything that was found out; `failed` holds required and optional plugins alike."""

    loaded: tuple[LoadedPlugin, ...]
    failed: tuple[FailedPlugin, ...]
    problems: tuple[str, ...]
    selection: Selection


def resolve(config: EngineConfig, plugins: Sequence[Chosen] = ()) -> Resolved:
    """Select, import, check and order; CompositionError lists every problem found."""
    examined = examine(config, plugins)
    if examined.problems:
        raise CompositionError(list(examined.problems))
    return Resolved(examined.loaded, examined.failed)


def with_defaults(config: EngineConfig, plugins: Sequence[Chosen] = ()) -> EngineConfig:
    """Return the whole configuration: with every option of every plugin that is loaded."""
    loaded = resolve(config, plugins).loaded
    tables = {plugin.name: encode(plugin.options_table()) for plugin in loaded}
    return evolve(config, tables={**config.tables, **tables})


def examine(config: EngineConfig, plugins: Sequence[Chosen] = ()) -> Examined:
    """Do all that `resolve` does, and report instead of raising."""
    selection = select(config, plugins)
    problems = [*selection.problems, *_unknown_tables(config, selection)]
    failed = [FailedPlugin(name, (text,)) for name, text in selection.missing_optional.items()]
    loaded: dict[type, LoadedPlugin] = {}
    for candidate in selection.candidates:
        try:
            plugin = load(candidate, config.tables.get(candidate.name, {}))
        except CompositionError as error:
            source = candidate.source.distribution if candidate.source else ""
            failed.append(FailedPlugin(candidate.name, tuple(error.problems), source))
            problems.extend(error.problems if candidate.is_required else [])
        else:
            problems.extend(_twice(plugin, loaded))
            loaded[plugin.plugin] = plugin
    problems.extend(_clashes(list(loaded.values())))
    ordered, cycles = _ordered(loaded.values())
    return Examined(ordered, tuple(failed), (*problems, *cycles), selection)


def _ordered(loaded: Iterable[LoadedPlugin]) -> tuple[tuple[LoadedPlugin, ...], list[str]]:
    by_name = {plugin.name: plugin for plugin in loaded}
    try:
        names = order({name: plugin.plugin.after for name, plugin in by_name.items()})
    except CompositionError as error:
        return tuple(by_name[name] for name in sorted(by_name)), error.problems
    return tuple(by_name[name] for name in names), []


def _twice(plugin: LoadedPlugin, loaded: dict[type, LoadedPlugin]) -> list[str]:
    """A class chosen by name and in Python is one plugin; two instances of it are two answers."""
    earlier = loaded.get(plugin.plugin)
    if earlier is None or earlier.instance is plugin.instance:
        return []
    return [f"plugin {plugin.name!r} is given twice, with different instances"]


def _unknown_tables(config: EngineConfig, selection: Selection) -> list[str]:
    known = selection.known | {candidate.name for candidate in selection.candidates}
    tables = (name for name in config.tables if name not in known)
    unknown_names = (name for name in config.without if name not in known)
    return [
        *(unknown("table", name, known={*SECTIONS, *RAW_TABLES, *known}) for name in tables),
        *(f"without: {unknown('plugin', name, known=known)}" for name in unknown_names),
    ]


def _clashes(loaded: Sequence[LoadedPlugin]) -> list[str]:
    problems = []
    names = [plugin.name for plugin in loaded]
    for name in sorted({each for each in names if names.count(each) > 1}):
        classes = ", ".join(each.plugin.__qualname__ for each in loaded if each.name == name)
        problems.append(f"plugin name {name!r} is taken by several classes: {classes}")
    claims = [(feature, plugin.name) for plugin in loaded for feature in plugin.plugin.features]
    for feature in sorted({feature for feature, _ in claims}):
        owners = sorted(name for each, name in claims if each == feature)
        if len(owners) > 1:
            problems.append(f"feature {feature!r} is claimed by several plugins: {owners}")
    return problems
