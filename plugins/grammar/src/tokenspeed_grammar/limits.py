# SPDX-License-Identifier: MIT
"""What a source may be at most, checked before a compiler sees it, in time linear in its length."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np

from tokenspeed_grammar.backend import GrammarError
from tokenspeed_grammar.turns import let_others

OPENING, CLOSING = b"[{", b"]}"
NO_BRACKET = bytes(byte for byte in range(256) if byte not in OPENING + CLOSING)
JSON_KINDS = ("json", "structural_tag")
MULTIPLE = re.compile(r'"multipleOf"\s*:\s*-?([0-9.]+)')
MOST_MULTIPLE = 10_000
PIECE = 1 << 17


def check_depth(kind: str, source: str, *, most: int) -> None:
    """GrammarError if JSON is nested deeper; compilers take time that grows fast with depth."""
    if kind not in JSON_KINDS:
        return
    depth = json_depth(source)
    if depth > most:
        raise GrammarError(f"it is nested {depth} levels deep, and {most} are allowed")


def json_depth(source: str) -> int:
    """How deep the brackets of a JSON text nest; those inside strings do not count."""
    # No parse: the standard library's keeps the interpreter to itself for its whole length.
    deepest = depth = 0
    is_inside = False
    for piece in _pieces(source):
        plain = piece.encode("utf-8", "replace").replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = plain.split(b'"')
        outside = b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0
        brackets = np.frombuffer(outside.translate(None, NO_BRACKET), dtype=np.uint8)
        if brackets.size:
            opens = np.isin(brackets, np.frombuffer(OPENING, dtype=np.uint8))
            depths = depth + np.where(opens, 1, -1).cumsum()
            deepest, depth = max(deepest, int(depths.max())), int(depths[-1])
    return deepest


def _pieces(source: str) -> Iterator[str]:
    """A text in pieces, none of which ends inside an escape; between them others may run."""
    start = 0
    while start < len(source):
        if start:
            let_others()
        end = min(start + PIECE, len(source))
        while end < len(source) and source[end - 1] == "\\":
            end += 1
        yield source[start:end]
        start = end


def check_multiples(source: str) -> None:
    """GrammarError if a schema wants multiples of a number with too many digits.

    An automaton has a state for each remainder: 99991 takes seconds and 35 MB, 9999991 took six
    minutes and five gigabytes.
    """
    if "\\u" in source:
        try:
            source = json.dumps(json.loads(source), ensure_ascii=False)
        except (ValueError, RecursionError):
            return  # the compiler says what is wrong with it
    if '"multipleOf"' not in source:
        return
    for digits in MULTIPLE.findall(source):
        if int(digits.replace(".", "").strip("0") or 0) > MOST_MULTIPLE:
            raise GrammarError(
                f"multipleOf {digits} has too many digits; without zeros at its ends it may be at "
                f"most {MOST_MULTIPLE}"
            )
