# SPDX-License-Identifier: MIT
"""Which plugins an engine is composed from: what the configuration and the caller name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from tokenspeed_core.composition.built_in import BUILT_IN, built_in
from tokenspeed_core.composition.discovery import Installed, InstalledPlugin, installed
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.config.nearest import unknown
from tokenspeed_hookspecs import Plugin


@frozen
class PluginChoice:
    """A plugin chosen in Python: a name, a class or one instance; `options` go over its table."""

    plugin: str | type[Plugin] | Plugin
    options: Mapping[str, Any] = field(factory=dict)
    is_optional: bool = False


NOTHING = Installed({}, {})
Chosen = str | type[Plugin] | Plugin | PluginChoice


@frozen
class Candidate:
    """A plugin that was asked for; `given` is the class or instance where Python named one."""

    name: str
    is_required: bool
    source: InstalledPlugin | None = None
    given: type[Plugin] | Plugin | None = None
    options: Mapping[str, Any] = field(factory=dict)


@frozen
class Selection:
    """What was asked for, what of it cannot be found, and every name that could be asked for."""

    candidates: tuple[Candidate, ...]
    problems: tuple[str, ...]
    missing_optional: Mapping[str, str]
    known: frozenset[str]


def select(config: EngineConfig, plugins: Sequence[Chosen] = ()) -> Selection:
    """Return the candidates: built in, named by the configuration, chosen in Python."""
    ours = built_in()
    # Reading what is installed takes longer than everything else that composes an engine.
    present = installed() if _names_others(config, plugins, ours=ours) else NOTHING
    known = {**present.plugins, **ours}
    wanted = [*_configured(config, present, ours=BUILT_IN), *(_as_choice(each) for each in plugins)]
    candidates: dict[object, Candidate] = {}
    problems: list[str] = [
        f"plugin {n!r} is built in" for n in sorted({*ours} & {*present.plugins})
    ]
    missing: dict[str, str] = {}
    for choice in wanted:
        name = choice.plugin
        if not isinstance(name, str):
            candidates[id(name)] = _given(choice, name)
        elif name not in known and choice.is_optional:
            missing[name] = unknown("plugin", name, known=known)
        elif name not in known:
            problems.append(unknown("plugin", name, known=known))
        elif name in present.problems:
            problems.append(present.problems[name])
        else:
            earlier = candidates.get(name)
            required = not choice.is_optional or (earlier is not None and earlier.is_required)
            candidates[name] = Candidate(name, required, known[name], None, choice.options)
    return Selection(tuple(candidates.values()), tuple(problems), missing, frozenset(known))


def _names_others(config: EngineConfig, plugins: Sequence[Chosen], *, ours: Iterable[str]) -> bool:
    """Whether anything is named that is not built in."""
    chosen = (_as_choice(each).plugin for each in plugins)
    names = {*config.optional, *config.without, *config.tables, *config.plugins}
    names.update(each for each in chosen if isinstance(each, str))
    return config.plugins == "auto" or not names <= {*ours}


def _configured(
    config: EngineConfig, present: Installed, *, ours: Iterable[str]
) -> Iterable[PluginChoice]:
    """Plugins that `auto` brings were not asked for by name: one that is broken only shows so."""
    names = sorted(present.plugins) if config.plugins == "auto" else config.plugins
    wanted = [PluginChoice(name) for name in ours]
    wanted += [PluginChoice(name, is_optional=config.plugins == "auto") for name in names]
    wanted += [PluginChoice(name, is_optional=True) for name in config.optional]
    return [choice for choice in wanted if choice.plugin not in config.without]


def _as_choice(chosen: Chosen) -> PluginChoice:
    return chosen if isinstance(chosen, PluginChoice) else PluginChoice(chosen)


def _given(choice: PluginChoice, plugin: type[Plugin] | Plugin) -> Candidate:
    owner = plugin if isinstance(plugin, type) else type(plugin)
    name = getattr(owner, "name", owner.__name__)
    return Candidate(str(name), not choice.is_optional, None, plugin, choice.options)
