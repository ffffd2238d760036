# SPDX-License-Identifier: MIT
"""From a command's arguments to a composed engine, with the log and the progress on stderr."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve, frozen

from tokenspeed_core.composition.plugin_flags import AddMore, parse
from tokenspeed_core.composition.resolve import with_defaults
from tokenspeed_core.config import EngineConfig, add_flags
from tokenspeed_core.errors import ConfigError

TRACE = "trace"
LEVELS = ("debug", "info", "warning", "error")


@frozen
class Parsed:
    """A command's own arguments, and the configuration that its others make."""

    own: argparse.Namespace
    config: EngineConfig


def parse_with_engine(
    parser: argparse.ArgumentParser, arguments: Sequence[str], *, add_more: AddMore | None = None
) -> Parsed:
    """Add the engine's flags and those of its plugins, and parse; ConfigError lists problems."""
    parser.add_argument(
        "--show-config", action="store_true", help="print the configuration as TOML and end"
    )
    parser.add_argument(
        "--log-level", choices=LEVELS, default="warning", help="what the log on stderr says"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the rounds to FILE, for ui.perfetto.dev"
    )
    add_flags(parser)
    own, config = parse(parser, arguments, add_more=add_more)
    if own.trace is not None:
        config = traced(config, own.trace)
    logging.basicConfig(level=own.log_level.upper(), format="%(levelname)s %(message)s")
    return Parsed(own, config)


def traced(config: EngineConfig, file: Path) -> EngineConfig:
    """The configuration with the plugin `trace`, which writes there."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigError([f"--trace: there is no folder {folder}"])
    table = {**config.tables.get(TRACE, {}), "file": str(file.absolute())}
    optional = dict.fromkeys([*config.optional, TRACE])
    return evolve(config, optional=tuple(optional), tables={**config.tables, TRACE: table})


def shown_config(config: EngineConfig) -> str:
    """The whole configuration as TOML, each plugin's defaults included."""
    return with_defaults(config).to_toml()
