# SPDX-License-Identifier: MIT
"""Schemas mean what JSON Schema says they mean, also where the library reads them differently."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tokenspeed_grammar.backend import Backend, CompiledGrammar, GrammarError
from tokenspeed_grammar.patterns import javascript_pattern
from tokenspeed_grammar.schemas import prepared_source


def says(compiled: CompiledGrammar, value: object) -> bool:
    """Whether a value's text may be said and then end; the tokens are bytes."""
    matcher = compiled.matcher()
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return all(matcher.accept(byte) for byte in text) and matcher.can_end


def _text(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


SEEN = {"$ref": "#/$defs/even", "maximum": 10, "$defs": {"even": {"multipleOf": 2}}}
# Schema, what follows it, what does not.
MEANT: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "dates": (_text(format="date"), ["2024-02-29", "2000-02-29"], ["2021-02-29", "1900-02-29"]),
    "months": (_text(format="date"), ["2021-12-31", "2021-04-30"], ["2021-04-31", "2021-13-01"]),
    "times": (_text(format="time"), ["23:59:59Z", "08:30:06.28+01:00"], ["24:00:00Z", "08:30:06"]),
    "leap seconds": (
        _text(format="time"),
        ["23:59:60Z", "01:29:60+01:30", "15:59:60.5-08:00"],
        ["22:59:60Z", "23:59:60+01:00", "23:58:60Z"],
    ),
    "moments": (
        _text(format="date-time"),
        ["2024-02-29T12:00:00Z"],
        ["2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z", "2024-02-29T12:60:00Z"],
    ),
    "a format with a pattern": (
        _text(format="date", pattern="^20"),
        ["2024-02-29"],
        ["1924-02-29", "20"],
    ),
    "a format with choices": (
        {"enum": ["2021-02-29", "2024-02-29"], "format": "date"},
        ["2024-02-29"],
        ["2021-02-29"],
    ),
    "a format for text only": ({"type": ["string", "null"], "format": "date"}, [None], ["x", 1]),
    "a value that looks like a schema": (
        {"enum": [{"format": "date", "pattern": "[[a]"}]},
        [{"format": "date", "pattern": "[[a]"}],
        [{"format": "date"}],
    ),
    "a property that looks like a keyword": (
        {"type": "object", "properties": {"format": _text(format="date"), "pattern": _text()}},
        [{"format": "2024-02-29", "pattern": "["}],
        [{"format": "2021-02-29"}],
    ),
    "spaces": (
        _text(pattern=r"^\s[^\s]\S$"),
        ["\ufeffab", " \x85a"],
        ["\x85ab", "  a", " a\ufeff"],
    ),
    "a dot": (_text(pattern="^.$"), ["a", "é"], ["\n", "\r", "\u2028"]),
    "a bracket in a class": (_text(pattern="^[[a]]$"), ["[]", "a]"], ["a", "["]),
    "signs in a class": (_text(pattern="^[a&&b~~]$"), ["a", "&", "b", "~"], ["c", "&&"]),
    "hyphens in a class": (_text(pattern=r"^[--/\w-]$"), ["-", ".", "/", "a"], [",", "0a"]),
    "a class of anything": (_text(pattern="^[^]$"), ["a", "\n"], ["", "ab"]),
    "names by pattern": (
        {"type": "object", "patternProperties": {r"^\S$": {"type": "null"}}},
        [{"a": None}],
        [{"a": 1}],
    ),
    "beside a reference": (SEEN, [4], [3, 12]),
    "a reference alone": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "title": "even"}
        | {"$ref": "#/definitions/even", "definitions": {"even": {"multipleOf": 2}}},
        [4],
        [3],
    ),
    "items one by one": (
        {"prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "type": "array"},
        [[], [None], [None, True]],
        [[True], [None, None]],
    ),
    "one of apart": ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, [None, 3], ["a", 0.5]),
    "how many names": (
        {"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 1},
        [{}, {"a": None}],
        [{"a": None, "b": None}],
    ),
    "bounds": ({"type": "number", "exclusiveMinimum": 1.1, "maximum": 3}, [1.2, 3], [1.1, 3.1]),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "draft 3": ({"$schema": "http://json-schema.org/draft-03/schema#"}, "draft 3"),
    "beside a reference": (
        SEEN | {"$schema": "http://json-schema.org/draft-07/schema#"},
        "ignores maximum; put them into an allOf",
    ),
    "what it is lenient about": ({"not": {}, "x-guidance": {"lenient": True}}, "x-guidance"),
    "deep inside": ({"items": {"anyOf": [{"x-guidance": {}}]}}, "x-guidance"),
    "an empty class": (_text(pattern="[]a]"), "nothing matches the []"),
    "an unknown escape": (_text(pattern=r"\Aa\z"), r"unknown escape \A"),
    "a lonely backslash": (_text(pattern="a\\"), "ends with a backslash"),
    "an open class": (_text(pattern="[a"), "unclosed class"),
    "a range of sets": (_text(pattern=r"[a-\d]"), "invalid character class range"),
    "one pattern twice": (
        {"patternProperties": {r"\s": {}, javascript_pattern(r"\s"): {}}},
        "the same pattern",
    ),
    "names that are none": ({"format": "date", "pattern": "a", "allOf": 7}, "allOf must be a list"),
    "a number beyond doubles": ('{"pattern": "a", "maximum": 1e999}', "too large"),
}


@pytest.mark.parametrize("case", MEANT)
def test_a_schema_means_what_it_says(backend: Backend, case: str) -> None:
    """Valid values may be said, and others may not."""
    schema, valid, invalid = MEANT[case]
    compiled = backend.compile("json", json.dumps(schema))
    assert [value for value in valid if not says(compiled, value)] == []
    assert [value for value in invalid if says(compiled, value)] == []


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_be_misread_is_refused(backend: Backend, case: str) -> None:
    """The reason names what is at fault."""
    schema, said = REFUSED[case]
    source = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(GrammarError) as raised:
        backend.compile("json", source)
    assert said in str(raised.value)


def test_a_schema_in_a_tag_means_the_same(backend: Backend) -> None:
    """Dates inside tags have the days of their month too."""
    form = {"type": "json_schema", "json_schema": _text(format="date")}
    compiled = backend.compile("structural_tag", json.dumps({"format": form}))
    assert (says(compiled, "2024-02-29"), says(compiled, "2021-02-29")) == (True, False)


def test_a_schema_in_a_tag_is_refused_alike(backend: Backend) -> None:
    """What the library would be lenient about is no way around."""
    form = {"type": "json_schema", "json_schema": {"not": {}, "x-guidance": {"lenient": True}}}
    with pytest.raises(GrammarError, match="x-guidance"):
        backend.compile("structural_tag", json.dumps({"format": form}))


@pytest.mark.parametrize("source", ['{"type": "string"}', "{", '{"format": "uri"}'])
def test_what_needs_nothing_stays_as_it_is(source: str) -> None:
    """No parse, and so no change, where nothing can be misread."""
    assert prepared_source(source) == source


def test_keywords_in_disguise_are_seen(backend: Backend) -> None:
    """An escape in a keyword's name changes nothing."""
    compiled = backend.compile("json", '{"type": "string", "\\u0066ormat": "d\\u0061te"}')
    assert not says(compiled, "2021-02-29")
