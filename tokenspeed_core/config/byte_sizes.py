# SPDX-License-Identifier: MIT
"""Sizes of memory as people write them: 2GiB, 512MB, 1.5 GB, or a number of bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping

UNITS: Mapping[str, int] = {
    "": 1,
    "b": 1,
    **{
        f"{letter}{tail}": 1000**power
        for power, letter in enumerate("kmgt", 1)
        for tail in ("", "b")
    },
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def parse_bytes(given: int | str) -> int:
    """The number of bytes; ValueError says what was expected and what came."""
    match = SIZE.fullmatch(str(given).strip().lower())
    unit = None if match is None else UNITS.get(match[2])
    if match is None or unit is None:
        raise ValueError(f"expected a size like 2GiB, 512MB or a number of bytes, got {given!r}")
    # A whole number stays exact.
    return int(match[1]) * unit if match[1].isdigit() else int(float(match[1]) * unit)
