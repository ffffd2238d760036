# SPDX-License-Identifier: MIT
"""The configuration as command-line flags: the same names as the keys, over file and defaults."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from tokenspeed_core.config.engine_config import (
    LIST_HELP,
    LISTS,
    SECTIONS,
    EngineConfig,
    from_tables,
    load,
)
from tokenspeed_core.config.nearest import nearest
from tokenspeed_core.config.tables import field_types, fields
from tokenspeed_core.config.values import describe, from_text, union_members
from tokenspeed_core.errors import ConfigError

CONFIG_DEST = "configuration_file"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE` and a flag for every key of the engine's own tables."""
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--config", type=Path, metavar="FILE", dest=CONFIG_DEST, help="a TOML file; flags win"
    )
    for name, wanted in LISTS.items():
        _add(group, name, flag=name, wanted=wanted, words=LIST_HELP[name])
    for table, section in SECTIONS.items():
        add_table_flags(parser, section, table=table)


def add_table_flags(
    parser: argparse.ArgumentParser, options: type, *, table: str, prefix: str = ""
) -> None:
    """Add a flag for every key of an options class; `prefix` goes before each name."""
    group = parser.add_argument_group(table.replace("_", " "))
    known = fields(options)
    for key, wanted in field_types(options).items():
        if _is_table(wanted):
            continue  # a table has no form on one line; it stays in the file
        words = _words(known[key])
        _add(group, f"{table}.{key}", flag=prefix + key, wanted=wanted, words=words)


def _words(option: attrs.Attribute[Any]) -> str:
    """An option's help, with the values it may have and the one it has by itself."""
    text: str = option.metadata.get("help", "")
    choices = ", ".join(map(str, option.metadata.get("choices", ())))
    default: object = option.default
    if isinstance(default, bool):
        default = "on" if default else "off"
    if default == "" or not isinstance(default, str | int | float):
        return f"{text} ({choices})" if choices else text
    return f"{text} ({choices}; {default} by itself)" if choices else f"{text} ({default})"


def _is_table(wanted: Any) -> bool:
    return "a table" in {describe(member) for member in union_members(wanted) or (wanted,)}


def _add(group: Any, dest: str, *, flag: str, wanted: Any, words: str) -> None:
    flag = flag.replace("_", "-")
    words = words.replace("%", "%%")  # argparse formats it
    if wanted is bool:
        group.add_argument(
            f"--{flag}",
            dest=dest,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=words,
        )
        return
    group.add_argument(
        f"--{flag}",
        dest=dest,
        type=partial(from_text, wanted=wanted),
        default=argparse.SUPPRESS,
        metavar=flag.rsplit("-", 1)[-1].upper(),
        help=words,
    )


def from_flags(namespace: argparse.Namespace, base: EngineConfig | None = None) -> EngineConfig:
    """Return defaults, then `base` or the file of `--config`, then the given flags.

    Flags of plugins (`metrics.port`) land in the plugin's table. ConfigError lists all problems.
    """
    given = vars(namespace)
    path = given.get(CONFIG_DEST)
    start = base or (load(path) if path is not None else EngineConfig())
    tables = start.as_tables()
    for dest, value in given.items():
        table, dot, key = dest.partition(".")
        if dot:
            tables.setdefault(table, {})[key] = value
        elif dest in LISTS:
            tables[dest] = value
    return from_tables(tables)


def reject_unknown(
    parser: argparse.ArgumentParser,
    extras: Sequence[str],
    *,
    owner_of: Callable[[str], str | None] = lambda flag: None,
) -> None:
    """Raise ConfigError for arguments no parser took, each flag with its nearest match.

    `owner_of` names the plugin that would know a flag, where one that is not chosen does.
    """
    flags = [flag for action in parser._actions for flag in action.option_strings]  # no public list
    known = [flag for flag in flags if flag.startswith("--")]
    wrong = [extra.partition("=")[0] for extra in extras if extra.startswith("-")]
    if extras:
        raise ConfigError(
            [_unknown(parser.prog, flag, known=known, owner=owner_of(flag)) for flag in wrong]
            or [f"unexpected argument {extra!r}" for extra in extras]
        )


def _unknown(command: str, flag: str, *, known: Sequence[str], owner: str | None) -> str:
    if owner is not None:
        return f"{flag} is a flag of the plugin {owner!r}; add it to --plugins"
    near = nearest(flag, known)
    hint = f"did you mean {near!r}?" if near else f"`{command} --help` lists them"
    return f"unknown flag {flag!r}; {hint}"
