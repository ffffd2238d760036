# SPDX-License-Identifier: MIT
"""An attrs class as a TOML table: its keys, its values, and everything wrong with a given one.

A field's metadata may hold `help`, `choices` and `minimum`; the last two are checked here.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.config.values import decode, encode, shown
from tokenspeed_core.errors import CompositionError, ConfigError

T = TypeVar("T")


def option(default: Any, words: str, **limits: Any) -> Any:
    """An attrs field with a help text and, by keyword, `choices` or `minimum`."""
    return attrs.field(default=default, metadata={"help": words, **limits})


def check_limits(options: object) -> None:
    """Raise ConfigError for every field of an options object that breaks its limits."""
    found = {
        key: limit_problem(attribute, getattr(options, attribute.name))
        for key, attribute in fields(type(options)).items()
    }
    problems = [f"{key}: {problem}" for key, problem in found.items() if problem]
    if problems:
        raise ConfigError(problems)


def limit_problem(attribute: attrs.Attribute[Any], value: Any) -> str | None:
    """Say how a value breaks its field's `choices` or `minimum`, if it does."""
    choices = attribute.metadata.get("choices")
    if choices is not None and value is not None and value not in choices:
        return f"expected one of {', '.join(repr(each) for each in choices)}, got {shown(value)}"
    minimum = attribute.metadata.get("minimum")
    if minimum is not None and value is not None and value < minimum:
        return f"expected at least {minimum}, got {value!r}"
    return None


def field_types(options: type) -> dict[str, Any]:
    """Return each key's type, in the order of the fields."""
    hints = typing.get_type_hints(options)
    return {key: hints.get(attribute.name, Any) for key, attribute in fields(options).items()}


def fields(options: type) -> dict[str, attrs.Attribute[Any]]:
    """Return the attrs fields that the constructor takes, by key."""
    return {
        attribute.alias or attribute.name: attribute
        for attribute in attrs.fields(options)
        if attribute.init
    }


def from_table(options: Callable[..., T], table: object, *, place: str) -> T:
    """Build an options object; ConfigError lists every wrong or unknown key by its place."""
    if not isinstance(options, type) or not attrs.has(options):
        raise ConfigError([f"{place}: its options class {options!r} is not an attrs class"])
    if not isinstance(table, Mapping):
        raise ConfigError([f"{place}: expected a table, got {shown(table)}"])
    values, problems = _decode_keys(options, table, place=place)
    if problems:
        raise ConfigError(problems)
    try:
        return typing.cast(T, options(**values))
    except CompositionError as error:
        raise ConfigError([f"{place}.{problem}" for problem in error.problems]) from error
    except (TypeError, ValueError) as error:
        raise ConfigError([f"{place}: {error}"]) from error


def _decode_keys(
    options: type, table: Mapping[str, object], *, place: str
) -> tuple[dict[str, Any], list[str]]:
    types, known = field_types(options), fields(options)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in table.items():
        if key not in known:
            problems.append(f"{place}: {unknown('option', key, known=known)}")
            continue
        try:
            values[key] = decode(value, types[key])
            problem = limit_problem(known[key], values[key])
        except ValueError as error:
            problem = str(error)
        if problem:
            problems.append(f"{place}.{key}: {problem}")
    required = (key for key, attribute in known.items() if attribute.default is attrs.NOTHING)
    problems.extend(f"{place}.{key}: is required" for key in required if key not in table)
    return values, problems


def to_table(options: object) -> dict[str, Any]:
    """Return an options object as a table, None where an option has no value."""
    keys = fields(type(options))
    return {key: encode(getattr(options, attribute.name)) for key, attribute in keys.items()}
