# SPDX-License-Identifier: MIT
"""How an unknown name is reported: with the nearest known one, and all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: str, *, known: Iterable[str]) -> str:
    """Say that a name is unknown, which known one is nearest, and which there are."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    choices = ", ".join(names) if names else "none"
    return f"unknown {kind} {name!r}{hint} (there are: {choices})"
