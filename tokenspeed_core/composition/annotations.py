# SPDX-License-Identifier: MIT
"""Whether an implementation's annotations fit its hook's: arguments as wide, results as narrow.

What has no annotation fits. A name that cannot be resolved (it is imported for type checkers only)
is compared by its last part.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any, Union

Function = Callable[..., Any]


def annotation_problems(found: Function, spec: Function, *, has_result: bool) -> Iterator[str]:
    """Yield each annotation of `found` that does not fit the specification."""
    hints, wanted = _hints(found), typing.get_type_hints(spec)
    for name, given in hints.items():
        if name == "return":
            if has_result and not _fits(given, wanted["return"]):
                yield f"returns {_shown(given)}, the hook {_written(spec, 'return')}"
        elif name in wanted and not _fits(wanted[name], given):
            yield f"takes {name}: {_shown(given)}, the hook has {_written(spec, name)}"


def _hints(function: Function) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return dict(function.__annotations__)


def _fits(narrow: Any, wide: Any) -> bool:
    if narrow == wide or Any in (narrow, wide) or wide is object:
        return True
    if isinstance(narrow, str) or isinstance(wide, str):
        return _bare(narrow) == _bare(wide)
    if _members(narrow) or _members(wide):
        wides = _members(wide) or (wide,)
        return all(any(_fits(each, one) for one in wides) for each in _members(narrow) or (narrow,))
    return _is_subclass(narrow, wide) and _arguments_fit(narrow, wide)


def _is_subclass(narrow: Any, wide: Any) -> bool:
    base = _origin(wide)
    if getattr(base, "_is_protocol", False):
        return True  # a structural type: what fits is the type checker's to say
    try:
        return issubclass(_origin(narrow), base)
    except TypeError:
        return True


def _arguments_fit(narrow: Any, wide: Any) -> bool:
    pairs = zip(typing.get_args(narrow), typing.get_args(wide), strict=False)
    return all(_fits(each, one) for each, one in pairs if Ellipsis not in (each, one))


def _origin(given: Any) -> Any:
    return NoneType if given is None else typing.get_origin(given) or given


def _members(given: Any) -> tuple[Any, ...]:
    return typing.get_args(given) if typing.get_origin(given) in (Union, UnionType) else ()


def _bare(given: Any) -> str:
    return re.sub(r"(\w+\.)+|\s+|['\"]", "", _shown(given))


def _shown(given: Any) -> str:
    if given is NoneType or given is None:
        return "None"
    return (
        given.__qualname__ if isinstance(given, type) and not typing.get_args(given) else str(given)
    )


def _written(spec: Function, name: str) -> str:
    return str(spec.__annotations__[name])
