# SPDX-License-Identifier: MIT
"""One option's value: from TOML or a flag's text to its annotated type, and back.

Supported are bool, int, float, str, Path, literals, enums, unions with None, lists and tuples of
one element type, tables of those and attrs classes. Nothing is converted silently: a text is no
number, a whole number is a number.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union

import attrs

from tokenspeed_core.errors import CompositionError

_SCALARS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
}
_LISTS = (list, tuple, Sequence)
_TABLES = (dict, Mapping)


def decode(value: object, wanted: Any) -> Any:
    """Return the value as the wanted type; ValueError says what was expected and what came."""
    if wanted is Any or wanted is object:
        return value
    if union_members(wanted):
        return _decode_union(value, wanted)
    origin = typing.get_origin(wanted) or wanted
    if origin in _LISTS and isinstance(value, (list, tuple)):
        return _decode_list(value, wanted)
    if origin in _TABLES and isinstance(value, Mapping):
        element = (typing.get_args(wanted) or (str, Any))[1]
        return {
            str(key): _decode_entry(str(key), entry, wanted=element) for key, entry in value.items()
        }
    if _is_record(wanted) and isinstance(value, Mapping):
        return _decode_record(value, wanted)
    return _decode_scalar(value, wanted)


def _decode_entry(key: str, value: object, *, wanted: Any) -> Any:
    try:
        return decode(value, wanted)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _decode_record(value: Mapping[str, object], wanted: type) -> Any:
    # Tables are made of values, and a value may be a table again.
    from tokenspeed_core.config.tables import from_table

    try:
        return from_table(wanted, value, place="")
    except CompositionError as error:
        told = (problem.lstrip(".: ") for problem in error.problems)
        raise ValueError("; ".join(told)) from error


def _is_record(wanted: object) -> bool:
    return isinstance(wanted, type) and attrs.has(wanted)


def _decode_scalar(value: object, wanted: Any) -> Any:
    if typing.get_origin(wanted) is Literal:
        if any(value == each and type(value) is type(each) for each in typing.get_args(wanted)):
            return value
    elif isinstance(wanted, type) and issubclass(wanted, Enum):
        for member in wanted:
            if value is member or value == member.value:
                return member
    elif wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif wanted is Path and isinstance(value, (str, Path)):
        return Path(value)
    elif (wanted in _SCALARS or _is_record(wanted)) and type(value) is wanted:
        return value
    raise ValueError(f"expected {describe(wanted)}, got {shown(value)}")


def _decode_list(value: Sequence[object], wanted: Any) -> Any:
    elements = [each for each in typing.get_args(wanted) if each is not Ellipsis]
    element = elements[0] if elements else Any
    decoded = [decode(entry, element) for entry in value]
    return decoded if (typing.get_origin(wanted) or wanted) is list else tuple(decoded)


def _decode_union(value: object, wanted: Any) -> Any:
    members = union_members(wanted)
    if value is None and type(None) in members:
        return None
    for member in members:
        try:
            return decode(value, member)
        except ValueError:
            continue
    raise ValueError(f"expected {describe(wanted)}, got {shown(value)}")


def encode(value: object) -> Any:
    """Return a value as TOML and JSON know it: scalars, lists and tables; None stays None."""
    if isinstance(value, Enum):
        return encode(value.value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): encode(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, (list, tuple)):
        return [encode(entry) for entry in value]
    if attrs.has(type(value)):
        from tokenspeed_core.config.tables import to_table

        return encode(to_table(value))
    return value


def from_text(text: str, wanted: Any) -> Any:
    """Return a flag's text as the nearest TOML value; a text that does not fit stays a text."""
    plain = [member for member in union_members(wanted) or (wanted,) if member is not type(None)]
    if text in {entry for member in plain for entry in typing.get_args(member)}:
        return text  # a literal beside a list: `auto`, or names
    for member in plain:
        if (typing.get_origin(member) or member) in _LISTS:
            element = (typing.get_args(member) or (str,))[0]
            return [from_text(part.strip(), element) for part in text.split(",") if part.strip()]
    converters: dict[Any, Callable[[str], Any]] = {int: int, float: float}
    for member in plain:
        try:
            return converters[member](text)
        except (KeyError, ValueError):
            continue
    return text


def union_members(wanted: Any) -> tuple[Any, ...]:
    """Return a union's members, and nothing for any other type."""
    is_union = typing.get_origin(wanted) in (Union, types.UnionType)
    return typing.get_args(wanted) if is_union else ()


def describe(wanted: Any) -> str:
    """Say in words what values a type has."""
    members = [each for each in union_members(wanted) if each is not type(None)]
    if members:
        return " or ".join(describe(member) for member in members)
    origin = typing.get_origin(wanted) or wanted
    if origin is Literal:
        return "one of " + ", ".join(repr(each) for each in typing.get_args(wanted))
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return "one of " + ", ".join(repr(member.value) for member in wanted)
    if origin in _LISTS:
        return f"a list ({describe((typing.get_args(wanted) or (Any,))[0])} each)"
    if origin in _TABLES or _is_record(origin):
        return "a table"
    return _SCALARS.get(wanted, getattr(wanted, "__name__", str(wanted)))


def shown(value: object) -> str:
    """Show a value and what kind it is."""
    kind = next((words for each, words in _SCALARS.items() if type(value) is each), None)
    kinds: dict[type, str] = {list: "a list", tuple: "a list", dict: "a table"}
    return f"{value!r} ({kind or kinds.get(type(value), type(value).__name__)})"
