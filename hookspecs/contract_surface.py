# SPDX-License-Identifier: MIT
"""The public names of the contract as lines of text: what a plugin may rely on, and nothing else.

A line changes exactly when a signature, a field, a member or a mode does; texts do not count.
"""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import attrs

import tokenspeed_hookspecs


def public() -> dict[str, Any]:
    """Return the contract's public names, in order, and what each is."""
    return {name: getattr(tokenspeed_hookspecs, name) for name in tokenspeed_hookspecs.__all__}


def digests(names: Mapping[str, Any]) -> dict[str, str]:
    """Return a short digest of each name's lines; the version itself is left out."""
    return {
        name: hashlib.sha256("\n".join(lines(value)).encode()).hexdigest()[:16]
        for name, value in sorted(names.items())
        if name != "API_VERSION"
    }


def lines(value: Any) -> list[str]:
    """Return what there is to rely on of one public name."""
    if isinstance(value, type) and issubclass(value, Enum):
        return [f"{member.name} = {member.value!r}" for member in value]
    if isinstance(value, type) and attrs.has(value):
        return [*fields(value), *sorted(text for text, _ in members(value))]
    if isinstance(value, type):
        return [*class_attributes(value), *sorted(text for text, _ in members(value))]
    return [str(value) if isinstance(value, (str, types.UnionType)) else _bare(value)]


def fields(record: type) -> list[str]:
    """Return an attrs class's fields in the order of its constructor."""
    return [_field(attribute) for attribute in attrs.fields(record)]


def _field(attribute: attrs.Attribute[Any]) -> str:
    text = f"{attribute.name}: {attribute.type}"
    if attribute.default is attrs.NOTHING:
        return text
    default: Any = attribute.default
    if hasattr(default, "factory"):
        return f"{text} = {default.factory.__name__}()"
    return f"{text} = {_value(default)}"


def _value(value: Any) -> str:
    is_plain_record = attrs.has(type(value)) and value == type(value)()
    return f"{type(value).__name__}()" if is_plain_record else repr(value)


def class_attributes(owner: type) -> list[str]:
    """Return a plain class's annotated attributes with their values."""
    annotations = inspect.get_annotations(owner)
    shown = [(name, text, owner.__dict__.get(name, ...)) for name, text in annotations.items()]
    return [f"{n}: {text}" + ("" if value is ... else f" = {value!r}") for n, text, value in shown]


def members(owner: type) -> Iterator[tuple[str, str]]:
    """Yield a class's public methods and properties, and what each says of itself."""
    for name, held in vars(owner).items():
        if isinstance(held, property) and not name.startswith("_"):
            yield f"{name}: {_annotation(held.fget, 'return')}", inspect.getdoc(held) or ""
        elif inspect.isfunction(held) and is_public(name):
            yield f"{name}{signature(held)}{hook_marks(held)}", inspect.getdoc(held) or ""


def signature(function: Callable[..., Any]) -> str:
    """Return a signature with its annotations as they are written."""
    types = inspect.get_annotations(function)
    parameters = inspect.signature(function).parameters.values()
    keyword_only = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    shown = []
    for each in parameters:
        if keyword_only[:1] == [each.name]:
            shown.append("*")
        text = f"{each.name}: {types[each.name]}" if each.name in types else each.name
        shown.append(text if each.default is each.empty else f"{text} = {each.default!r}")
    return f"({', '.join(shown)}) -> {types.get('return', 'None')}"


def is_public(name: str) -> bool:
    """Whether a method is part of the contract; of the special ones, only a call and a length."""
    return not name.startswith("_") or name in {"__call__", "__len__"}


def hook_marks(function: Callable[..., Any]) -> str:
    """Return a hook's mode, and whether the first answer ends it."""
    mode = getattr(function, "tokenspeed_mode", None)
    if mode is None:
        return ""
    opts = vars(function)["tokenspeed_spec"]
    return f" [{mode.value}{', first answer' if opts['firstresult'] else ''}]"


def _annotation(function: Callable[..., Any] | None, name: str) -> str:
    return str(inspect.get_annotations(function).get(name, "")) if function else ""


def _bare(value: Any) -> str:
    """A marker or an alias, without addresses."""
    return repr(value) if isinstance(value, types.GenericAlias) else type(value).__qualname__
