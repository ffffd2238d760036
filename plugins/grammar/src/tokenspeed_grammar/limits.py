# SPDX-License-Identifier: MIT
"""What a source may be at most, checked before a compiler sees it, in time linear in its length."""

from __future__ import annotations

import json
import re

import numpy as np

from tokenspeed_grammar.backend import GrammarError

OPENING, CLOSING = b"[{", b"]}"
NO_BRACKET = bytes(byte for byte in range(256) if byte not in OPENING + CLOSING)
JSON_KINDS = ("json", "structural_tag")
MULTIPLE = re.compile(r'"multipleOf"\s*:\s*-?([0-9.]+)')
MOST_MULTIPLE = 10_000


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
    plain = source.encode("utf-8", "replace").replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(plain.split(b'"')[::2])
    brackets = np.frombuffer(outside.translate(None, NO_BRACKET), dtype=np.uint8)
    if not brackets.size:
        return 0
    opens = np.isin(brackets, np.frombuffer(OPENING, dtype=np.uint8))
    return int(np.where(opens, 1, -1).cumsum().max())


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
    for digits in MULTIPLE.findall(source):
        if int(digits.replace(".", "").strip("0") or 0) > MOST_MULTIPLE:
            raise GrammarError(
                f"multipleOf {digits} has too many digits; without zeros at its ends it may be at "
                f"most {MOST_MULTIPLE}"
            )
