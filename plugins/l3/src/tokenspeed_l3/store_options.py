# SPDX-License-Identifier: MIT
"""A store's options as an attrs class: from texts of an address or values of a TOML table.

A field's type says how it is read: int (also `20GiB`), float (seconds, also `1.5s` and `200ms`),
bool (true, false) or str.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from attrs import NOTHING, AttrsInstance, fields, resolve_types

Settings = TypeVar("Settings", bound=AttrsInstance)

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3}


def read_options(kind: type[Settings], options: Mapping[str, object], *, store: str) -> Settings:
    """Make `kind` of the options. ValueError: every problem, a sentence each."""
    resolve_types(kind)
    known = {each.name: each for each in fields(kind)}
    problems = [
        f"{store}: no option {name!r}; it has {', '.join(known)}" for name in options.keys() - known
    ]
    values: dict[str, Any] = {}
    for name in options.keys() & known.keys():
        try:
            values[name] = READERS[known[name].type](options[name])
        except ValueError as error:
            problems.append(f"{store}: option {name}: {error}")
    problems += [
        f"{store}: option {name} is missing"
        for name, each in known.items()
        if each.default is NOTHING and name not in options
    ]
    if problems:
        raise ValueError("; ".join(sorted(problems)))
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{store}: {error}") from error


def read_size(value: object) -> int:
    """A number of bytes: a number, or a text such as 20GiB. ValueError: it is neither."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value))
    if match is None or match[2] not in UNITS:
        known = ", ".join(filter(None, UNITS))
        raise ValueError(f"expected a number, alone or with one of {known}, got {value!r}")
    return int(Decimal(match[1]) * UNITS[match[2]])


def read_seconds(value: object) -> float:
    """A time: a number of seconds, or a text such as 200ms. ValueError: it is neither."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value))
    if match is None or match[2] not in SECONDS:
        raise ValueError(f"expected seconds, such as 30, 1.5s or 200ms, got {value!r}")
    return float(match[1]) * SECONDS[match[2]]


def read_switch(value: object) -> bool:
    """True or false, or a text that says so. ValueError: it is neither."""
    if value not in (True, False, "true", "false"):
        raise ValueError(f"expected true or false, got {value!r}")
    return value in (True, "true")


def read_text(value: object) -> str:
    """A text. ValueError: it is something else."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {value!r}")
    return value


READERS: Mapping[Any, Callable[[object], Any]] = {
    int: read_size,
    float: read_seconds,
    bool: read_switch,
    str: read_text,
}
