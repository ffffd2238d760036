# SPDX-License-Identifier: MIT
"""The whole configuration of an engine, as one record and as one TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from attrs import field, frozen

from tokenspeed_core.config.sections import EngineSection, SchedulerSection
from tokenspeed_core.config.tables import from_table, to_table
from tokenspeed_core.config.values import decode, encode, shown
from tokenspeed_core.errors import ConfigError

Names = tuple[str, ...]
SECTIONS: Mapping[str, type] = {"engine": EngineSection, "scheduler": SchedulerSection}
LISTS: Mapping[str, Any] = {
    "plugins": Literal["auto"] | Names,
    "optional": Names,
    "without": Names,
}
LIST_HELP: Mapping[str, str] = {
    "plugins": "plugins to load, by name; auto for all installed ones",
    "optional": "plugins to load that may fail without stopping the start",
    "without": "plugins not to load, even where they are built in",
}
DATA_PLANE = "data_plane"
FRONTEND = "frontend"
RAW_TABLES = (DATA_PLANE, FRONTEND)


@frozen(kw_only=True)
class EngineConfig:
    """What an engine is composed from.

    `data_plane` is the table its driver gets as options, as it is; `tables` holds one table a
    plugin, checked by the plugin's own options class. A driver of a data plane is called as
    `Driver(config, options)`, and with `seat`, where it meets the others, if there are several
    ranks. `frontend` is the table of `tokenspeed serve`, which an engine's own process has no use
    for.
    """

    engine: EngineSection = field(factory=EngineSection)
    scheduler: SchedulerSection = field(factory=SchedulerSection)
    data_plane: Mapping[str, Any] = field(factory=dict)
    frontend: Mapping[str, Any] = field(factory=dict)
    plugins: Literal["auto"] | Names = ()
    optional: Names = ()
    without: Names = ()
    tables: Mapping[str, Mapping[str, Any]] = field(factory=dict)

    def as_tables(self) -> dict[str, Any]:
        """Return the configuration as plain nested mappings; an option without value is None."""
        return {
            "plugins": encode(self.plugins),
            "optional": list(self.optional),
            "without": list(self.without),
            "engine": to_table(self.engine),
            "scheduler": to_table(self.scheduler),
            DATA_PLANE: dict(self.data_plane),
            **({FRONTEND: dict(self.frontend)} if self.frontend else {}),
            **{name: dict(table) for name, table in self.tables.items()},
        }

    def to_toml(self) -> str:
        """Return the file that `load` reads back as the same configuration."""
        return tomli_w.dumps(encode(self.as_tables()))


def load(path: Path) -> EngineConfig:
    """Read a configuration file; ConfigError lists everything wrong with it."""
    try:
        return from_tables(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError([f"cannot read {path}: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} is not TOML: {error}"]) from error


def from_tables(given: Mapping[str, Any]) -> EngineConfig:
    """Build a configuration from nested mappings; ConfigError lists all problems."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name in given:
        try:
            values[name] = _value(name, given[name])
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    own = {name: values[name] for name in (*LISTS, *SECTIONS, *RAW_TABLES) if name in values}
    return EngineConfig(**own, tables={name: values[name] for name in values if name not in own})


def _value(name: str, given: object) -> Any:
    if name in SECTIONS:
        return from_table(SECTIONS[name], given, place=name)
    if name in LISTS:
        try:
            return decode(given, LISTS[name])
        except ValueError as error:
            raise ConfigError([f"{name}: {error}"]) from error
    if not isinstance(given, Mapping):
        raise ConfigError([f"{name}: expected a table of options, got {shown(given)}"])
    return dict(given)
