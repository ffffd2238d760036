# SPDX-License-Identifier: MIT
"""Sources that are refused before a compiler sees them."""

from __future__ import annotations

import json

import pytest

from tokenspeed_grammar.backend import GrammarError
from tokenspeed_grammar.limits import PIECE, check_depth, json_depth


@pytest.mark.parametrize(
    "value",
    [{}, 7, "[[[[", {"a": 1}, {"a": ["]", "\\", '"[', {"b": "\\\\["}]}, [[[[]], []]], {"[": {}}],
)
def test_depth_is_that_of_the_parsed_value(value: object) -> None:
    """Brackets inside strings, and escaped quotes, do not count."""

    def deep(value: object) -> int:
        if not isinstance(value, list | dict):
            return 0
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(deep, inner), default=0)

    assert json_depth(json.dumps(value)) == deep(value)


@pytest.mark.parametrize("shift", range(4))
def test_a_long_text_is_counted_in_pieces(shift: int) -> None:
    """Wherever a piece ends, also inside of a string or before an escaped character."""
    texts = ['\\"' * (PIECE // 4), "[" * PIECE, "\\" * PIECE, "]"]
    value = [" " * shift, [texts], {"a": {"b": [{}]}}]
    assert json_depth(json.dumps(value)) == 5


@pytest.mark.parametrize("kind", ["json", "structural_tag"])
def test_deep_json_is_refused(kind: str) -> None:
    """What is nested deeper than allowed is refused with both numbers."""
    source = "[" * 65 + "]" * 65
    check_depth(kind, source, most=65)
    with pytest.raises(GrammarError, match="65 levels deep, and 64 are allowed"):
        check_depth(kind, source, most=64)


def test_a_pattern_has_no_depth() -> None:
    """Other kinds have limits of their own."""
    check_depth("regex", "[" * 500, most=1)
