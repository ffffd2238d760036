# SPDX-License-Identifier: MIT
"""`--<name> VALUE`: one flag that chooses a plugin and sets the option it is mostly chosen for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import attrs
from attrs import evolve, frozen

from tokenspeed_core.composition.discovery import InstalledPlugin, installed
from tokenspeed_core.composition.plugin_class import find_class
from tokenspeed_core.composition.selection import Candidate
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.config.tables import field_types, fields
from tokenspeed_core.config.values import from_text
from tokenspeed_core.errors import CompositionError
from tokenspeed_hookspecs import Plugin

HELP = ("-h", "--help")


@frozen
class Shorthand:
    """A plugin, and the option that its flag sets."""

    plugin: type[Plugin]
    option: str

    @property
    def dest(self) -> str:
        """Where a parser puts the value: as the option's own flag does."""
        return f"{self.plugin.name}.{self.option}"

    @property
    def words(self) -> str:
        """What the option is, for people."""
        told = fields(self.plugin.Options)[self.option].metadata.get("help", "")
        return f"{self.option}: {told}" if told else f"this is its option {self.option}"


def find_shorthands(arguments: Sequence[str], *, taken: argparse.ArgumentParser) -> list[Shorthand]:
    """The shorthands that the arguments use, and all of them where they ask for help.

    Only plugins that an argument is named after are imported: the others cost nothing.
    """
    given = {each.partition("=")[0] for each in arguments}
    wants_help = not given.isdisjoint(HELP)
    found = []
    for name, plugin in installed().plugins.items():
        flag = _flag(name)
        if (flag in given or wants_help) and flag not in taken._option_string_actions:
            found += _of(plugin)
    return found


def _of(source: InstalledPlugin) -> list[Shorthand]:
    # What cannot be imported is told when it is chosen; here it has no flag.
    with suppress(CompositionError):
        plugin = find_class(Candidate(source.name, True, source))
        if plugin.shorthand and attrs.has(plugin.Options):
            return [Shorthand(plugin, plugin.shorthand)]
    return []


def add_shorthands(parser: argparse.ArgumentParser, shorthands: Sequence[Shorthand]) -> None:
    """Add the flags."""
    for each in shorthands:
        name = each.plugin.name
        parser.add_argument(
            _flag(name),
            dest=each.dest,
            type=partial(from_text, wanted=field_types(each.plugin.Options)[each.option]),
            default=argparse.SUPPRESS,
            metavar=each.option.upper(),
            help=f"use the plugin {name}; {each.words}".replace("%", "%%"),
        )


def with_shorthands(
    config: EngineConfig, given: argparse.Namespace, *, shorthands: Sequence[Shorthand]
) -> EngineConfig:
    """The configuration with the plugins that were chosen by their flags."""
    names = [each.plugin.name for each in shorthands if each.dest in vars(given)]
    if config.plugins == "auto" or not names:
        return config
    return evolve(config, plugins=tuple(dict.fromkeys([*config.plugins, *names])))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
