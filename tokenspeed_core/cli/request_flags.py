# SPDX-License-Identifier: MIT
"""The flags by which plugins let a request say more, for the commands that send requests."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attrs import define, field

from tokenspeed_core.composition.plugin_flags import request_flags
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.errors import CompositionError, ConfigError
from tokenspeed_hookspecs import RequestFlag


@define
class RequestFlags:
    """Adds the chosen plugins' flags to a parser, and reads what they said."""

    _flags: Sequence[RequestFlag] = field(default=(), init=False)

    def add(self, parser: argparse.ArgumentParser, config: EngineConfig) -> None:
        """Add a flag for each; CompositionError if a name is taken."""
        self._flags = request_flags(config)
        group = parser.add_argument_group("requests")
        for flag in self._flags:
            try:
                group.add_argument(
                    f"--{flag.name}", dest=_dest(flag), metavar=flag.metavar, help=flag.help
                )
            except argparse.ArgumentError as error:
                raise CompositionError([f"request flag {flag.name!r}: {error}"]) from error

    def features(self, given: argparse.Namespace) -> dict[str, object]:
        """The features of each request; ConfigError lists the flags that cannot be read."""
        found: dict[str, object] = {}
        problems = []
        for flag in self._flags:
            text = getattr(given, _dest(flag))
            if text is None:
                continue
            try:
                found[flag.feature] = flag.read(text)
            except ValueError as error:
                problems.append(f"--{flag.name}: {error}")
        if problems:
            raise ConfigError(problems)
        return found


def _dest(flag: RequestFlag) -> str:
    return f"request flag {flag.name}"
