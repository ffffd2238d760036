# SPDX-License-Identifier: MIT
"""What xgrammar implements of JSON Schema; all else is refused, as it would be passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tokenspeed_grammar.backend import GrammarError
from tokenspeed_grammar.schemas import ANNOTATIONS

_NUMBERS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
# What may stand beside each type.
OF_TYPE: Mapping[str, frozenset[str]] = {
    "array": frozenset(["items", "prefixItems", "minItems", "maxItems"]),
    "boolean": frozenset(),
    "integer": _NUMBERS,
    "null": frozenset(),
    "number": _NUMBERS,
    "object": frozenset(["properties", "required", "additionalProperties"]),
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
}
FORMATS = frozenset(["date", "time", "date-time", "email", "ipv4", "uuid"])
LENGTHS = frozenset(["minLength", "maxLength"])
# A character of a string, as JSON spells it.
CHARACTER = (
    "(?:[ !#-\\[\\]-\x7f\u0080-\ud7ff\ue000-\U0010ffff]"
    r"|\\(?:[\"\\/bfnrt]|u(?:[0-9A-CEFa-cef][0-9A-Fa-f]|[Dd][0-7])[0-9A-Fa-f]{2}))"
)
# One of these says all of a schema; what stands beside it would be passed over.
WHOLE = ("$ref", "const", "enum", "anyOf", "allOf")
# A repetition of more took the process down where its grammar was used.
MOST_REPEATS = 127
REPEATS = re.compile(r"(?<!\\[pPux])\{(\d*),?(\d*)\}")
# It matches patterns against text as JSON spells it: what JSON escapes would be said plainly.
NEGATED = re.compile(r"\[\^[A-Za-z0-9_ ,.:;/-]*\]")
ESCAPED = re.compile(r'["\x00-\x1f]|\[\^|\\[\\bcfnrtuvx0]|\(\?[=!<P]')


def check_repeats(source: str) -> None:
    """GrammarError if a pattern repeats a part too often."""
    for bounds in REPEATS.findall(source):
        for bound in bounds:
            if bound and int(bound[:9]) > MOST_REPEATS:
                raise GrammarError(f"repeated {bound} times; this backend does {MOST_REPEATS}")


def fit_schema(schema: Any) -> None:
    """Make a schema fit for the library, in place; GrammarError if it would pass over a part."""
    waiting = [schema]
    while waiting:
        found = waiting.pop()
        if found is False:
            raise GrammarError("this backend does not implement the schema false here")
        if found is not True:
            _need(isinstance(found, dict), f"a schema must be a mapping, got {found!r:.80}")
            waiting.extend(_checked(found))


def _checked(node: dict[str, Any]) -> Iterator[Any]:
    """Check one schema; the ones below it."""
    said = node.keys() - ANNOTATIONS
    whole = [name for name in WHOLE if name in said]
    if whole:
        beside = said - {whole[0]} - ({"type"} if whole[0] in ("const", "enum") else set())
        _need(not beside, f"beside {whole[0]} this backend passes over {_listed(beside)}")
        yield from _checked_whole(node, whole[0])
    elif said:
        yield from _checked_type(node, said)
    for name in ("$defs", "definitions"):
        yield from node.get(name, {}).values()


def _checked_whole(node: dict[str, Any], name: str) -> Iterator[Any]:
    value = node[name]
    if name == "$ref":
        _need(value == "#" or str(value).startswith("#/"), f"cannot follow the $ref {value!r}")
    elif name in ("anyOf", "allOf"):
        _need(isinstance(value, list) and bool(value), f"{name} must be a list, and not empty")
        _need(name == "anyOf" or len(value) == 1, "this backend does one schema in allOf")
        yield from value
    elif "type" in node:
        kinds = _kinds(node)
        values = value if name == "enum" else [value]
        _need(isinstance(values, list), "enum must be a list")
        apart = [one for one in values if not any(_is_of(one, kind) for kind in kinds)]
        _need(not apart, f"this backend passes over the type beside {name}")


def _checked_type(node: dict[str, Any], said: set[str]) -> Iterator[Any]:
    _need("type" in said, f"without a type this backend passes over {_listed(said)}")
    kinds = _kinds(node)
    known = {"type"}.union(*(OF_TYPE[kind] for kind in kinds))
    _need(said <= known, f"this backend does not implement {_listed(said - known)} here")
    if "pattern" in said:
        _need(not said & LENGTHS, "this backend does a pattern or a length")
        _need("format" not in said, "this backend does a pattern or a format")
        _check_pattern(str(node["pattern"]))
    elif "format" in said:
        _need(node["format"] in FORMATS, f"this backend does not know format {node['format']!r}")
        _need(not said & LENGTHS, "this backend does a format or a length")
    elif said & LENGTHS:
        _rewrite_length(node)
    unnamed = set(node.get("required", ())) - node.get("properties", {}).keys()
    _need(not unnamed, f"properties must name what is required, {_listed(unnamed)} too")
    yield from node.get("properties", {}).values()
    yield from node.get("prefixItems", [])
    for name in ("items", "additionalProperties"):
        if name in node and node[name] is not False:
            yield node[name]


def _check_pattern(pattern: str) -> None:
    check_repeats(pattern)
    is_whole = pattern.startswith("^") and pattern.endswith("$") and not pattern.endswith("\\$")
    _need(is_whole, "this backend does patterns between ^ and $")
    unfit = ESCAPED.search(NEGATED.sub("", pattern))
    _need(unfit is None, "this backend does no pattern of what JSON escapes, and no look-around")


def _rewrite_length(node: dict[str, Any]) -> None:
    """Say a length as a pattern: under a length the library lets control characters through."""
    least, most = node.pop("minLength", 0), node.pop("maxLength", None)
    bounds = [least] if most is None else [least, most]
    fits = all(type(bound) is int and 0 <= bound <= MOST_REPEATS for bound in bounds)
    _need(fits, f"this backend does lengths up to {MOST_REPEATS}, got {bounds}")
    node["pattern"] = f"^{CHARACTER}{{{least},{'' if most is None else most}}}$"


def _kinds(node: dict[str, Any]) -> list[str]:
    kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
    unknown = [kind for kind in kinds if kind not in OF_TYPE]
    _need(bool(kinds) and not unknown, f"unknown type {unknown}")
    return kinds


def _is_of(value: Any, kind: str) -> bool:
    of: dict[str, tuple[type, ...]] = {
        "array": (list,),
        "boolean": (bool,),
        "integer": (int,),
        "null": (type(None),),
        "number": (int, float),
        "object": (dict,),
        "string": (str,),
    }
    return isinstance(value, of[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _need(holds: bool, text: str) -> None:
    if not holds:
        raise GrammarError(text)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
