# SPDX-License-Identifier: MIT
"""The command line of an engine with plugins: their options are flags, their commands are found.

The plugins are known only once `--config` and `--plugins` were read, so those are read first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import attrs

from tokenspeed_core.composition.plugin_class import find_class
from tokenspeed_core.composition.resolve import examine
from tokenspeed_core.composition.selection import Chosen, select
from tokenspeed_core.composition.shorthands import (
    add_shorthands,
    find_shorthands,
    with_shorthands,
)
from tokenspeed_core.config import EngineConfig, add_flags, add_table_flags, from_flags
from tokenspeed_core.config.flags import reject_unknown
from tokenspeed_core.config.tables import fields
from tokenspeed_core.errors import CompositionError
from tokenspeed_hookspecs import CliCommand, Plugin, RequestFlag

AddMore = Callable[[argparse.ArgumentParser, EngineConfig], None]


def parse(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    *,
    plugins: Sequence[Chosen] = (),
    add_more: AddMore | None = None,
) -> tuple[argparse.Namespace, EngineConfig]:
    """Parse a command's arguments; `parser` holds its own flags and those of `add_flags`.

    `add_more` adds flags that depend on the chosen plugins. CompositionError (ConfigError for flags
    and files) lists what is wrong.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_flags(first)
    short = find_shorthands(arguments, taken=parser)
    for each in (first, parser):
        add_shorthands(each, short)
    chosen, _ = first.parse_known_args(arguments)
    config = with_shorthands(from_flags(chosen), chosen, shorthands=short)
    add_plugin_flags(parser, config, plugins=plugins)
    if add_more is not None:
        add_more(parser, config)
    namespace, extras = parser.parse_known_args(arguments)
    reject_unknown(parser, extras, owner_of=partial(_owner, with_requests=add_more is not None))
    return namespace, with_shorthands(from_flags(namespace), namespace, shorthands=short)


def add_plugin_flags(
    parser: argparse.ArgumentParser, config: EngineConfig, *, plugins: Sequence[Chosen] = ()
) -> None:
    """Add `--<plugin>-<option>` for every option of the chosen plugins."""
    problems = []
    for plugin in _classes(config, plugins):
        name = getattr(plugin, "name", None)
        if not isinstance(name, str) or not attrs.has(plugin.Options):
            continue
        try:
            add_table_flags(parser, plugin.Options, table=name, prefix=f"{name}_")
        except argparse.ArgumentError as error:
            problems.append(f"plugin {name!r}: {error}")
    if problems:
        raise CompositionError(problems)


def request_flags(config: EngineConfig, plugins: Sequence[Chosen] = ()) -> list[RequestFlag]:
    """Return the flags by which the chosen plugins let a request say more."""
    return [flag for plugin in _classes(config, plugins) for flag in plugin.request_flags]


def _classes(config: EngineConfig, plugins: Sequence[Chosen]) -> Iterator[type[Plugin]]:
    for candidate in select(config, plugins).candidates:
        # Composition reports what cannot be imported, with everything else that is wrong.
        with suppress(CompositionError):
            yield find_class(candidate)


def _owner(flag: str, *, with_requests: bool) -> str | None:
    """The installed plugin that has this flag, among those for requests too if these are wanted."""
    for plugin in _classes(EngineConfig(plugins="auto"), ()):
        keys = fields(plugin.Options) if attrs.has(plugin.Options) else ()
        names = [f"{plugin.name}_{key}".replace("_", "-") for key in keys]
        if with_requests:
            names += [each.name for each in plugin.request_flags]
        if flag.removeprefix("--") in names:
            return plugin.name
    return None


def cli_commands(config: EngineConfig, plugins: Sequence[Chosen] = ()) -> list[CliCommand]:
    """Return the subcommands of the chosen plugins; no plugin is made for it."""
    commands: dict[str, CliCommand] = {}
    for member in examine(config, plugins).loaded:
        if member.plugin.cli_commands is Plugin.cli_commands:
            continue
        ask = cast(Callable[[Any], Sequence[CliCommand]], member.plugin.cli_commands)
        for command in ask(member.plugin):
            if command.name in commands:
                text = f"plugin {member.name!r}: command {command.name!r} is taken already"
                raise CompositionError([text])
            commands[command.name] = command
    return list(commands.values())
