# SPDX-License-Identifier: MIT
"""What `tokenspeed plugins` says: each plugin, loaded or why not, and each hook's order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from tokenspeed_core.composition.built_in import built_in
from tokenspeed_core.composition.discovery import InstalledPlugin, installed
from tokenspeed_core.composition.plugin_class import LoadedPlugin
from tokenspeed_core.composition.resolve import FailedPlugin, examine
from tokenspeed_core.composition.selection import Chosen
from tokenspeed_core.composition.signatures import hook_specs, implementation_options, implemented
from tokenspeed_core.config import EngineConfig

LONGEST_HOOK = 19  # characters
LOADED, FAILED, NOT_CHOSEN, SWITCHED_OFF = "loaded", "failed", "not chosen", "switched off"


@frozen
class PluginRow:
    """One plugin: what state it is in, and why if it is not loaded."""

    name: str
    state: str
    version: str
    source: str
    reasons: tuple[str, ...] = ()
    options: Mapping[str, Any] = attrs.field(factory=dict)
    hooks: tuple[str, ...] = ()


@frozen
class PluginsReport:
    """The plugins, loaded ones first and in their order; `hooks` names who is called, in order."""

    plugins: tuple[PluginRow, ...]
    hooks: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...]

    def to_json(self) -> str:
        """Return the report as one JSON document."""
        return json.dumps(attrs.asdict(self), indent=2)

    def table(self) -> Table:
        """Return the report as a table for a terminal."""
        hooks = Column("hooks or why not", min_width=LONGEST_HOOK)
        table = Table("plugin", "state", "from", "options", hooks, box=SIMPLE_HEAD, pad_edge=False)
        for row in self.plugins:
            options = "\n".join(f"{key} = {value}" for key, value in row.options.items())
            details = "\n".join(row.reasons or row.hooks)
            source = row.source if row.version in row.source else f"{row.source} {row.version}"
            table.add_row(row.name, row.state, source, options, details)
        return table


def plugins_report(config: EngineConfig, plugins: Sequence[Chosen] = ()) -> PluginsReport:
    """Report on everything installed and chosen; broken plugins are rows, not errors."""
    examined = examine(config, plugins)
    rows = [loaded_row(member) for member in examined.loaded]
    known = {**installed().plugins, **built_in()}
    rows += [_failed(each, known.get(each.name)) for each in examined.failed]
    shown = {row.name for row in rows}
    rows += [_absent(each, config) for name, each in sorted(known.items()) if name not in shown]
    return PluginsReport(tuple(rows), hooks_in_order(examined.loaded), examined.problems)


def loaded_row(member: LoadedPlugin) -> PluginRow:
    """The row of a plugin that is loaded."""
    hooks = tuple(sorted(implemented(member.plugin)))
    options = member.options_table()
    return PluginRow(member.name, LOADED, member.version, member.source, (), options, hooks)


def _failed(plugin: FailedPlugin, found: InstalledPlugin | None) -> PluginRow:
    version = found.version if found else ""
    return PluginRow(plugin.name, FAILED, version, plugin.source, plugin.problems)


def _absent(plugin: InstalledPlugin, config: EngineConfig) -> PluginRow:
    is_off = plugin.name in config.without
    state = SWITCHED_OFF if is_off else NOT_CHOSEN
    reason = "named in `without`" if is_off else "not named in `plugins`"
    source = f"{plugin.distribution} {plugin.version}"
    return PluginRow(plugin.name, state, plugin.version, source, (reason,))


def hooks_in_order(members: Sequence[LoadedPlugin]) -> dict[str, tuple[str, ...]]:
    """Each hook that somebody implements, with the plugins in the order they are called."""
    options = {member.name: implementation_options(member.plugin) for member in members}
    orders = {hook: _order(hook, options) for hook in hook_specs()}
    orders["stop"] = orders["stop"][::-1]  # who started last stops first
    return {hook: names for hook, names in orders.items() if names}


def _order(hook: str, options: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Wrappers first, then who asked to be first, then the order of the plugins, then the last.

    pluggy turns the order around among those that asked to be last.
    """
    ranked = []
    for position, (name, hooks) in enumerate(options.items()):
        opts = hooks.get(hook)
        if opts is not None:
            turned = -position if opts["trylast"] else position
            rank = 0 if opts["tryfirst"] else 2 if opts["trylast"] else 1
            ranked.append(((not opts["wrapper"], rank, turned), name))
    return tuple(name for _, name in sorted(ranked))
