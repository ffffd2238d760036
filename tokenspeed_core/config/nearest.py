# SPDX-License-Identifier: MIT
"""How an unknown name is reported: with the nearest known one, and all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# How much of two names must be alike for one to be meant by the other; less is a guess at random.
LIKE = 0.7


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like another one, if any is."""
    return next(iter(difflib.get_close_matches(name, [*known], n=1, cutoff=LIKE)), None)


def unknown(kind: str, name: str, *, known: Iterable[str]) -> str:
    """Say that a name is unknown, which known one is nearest, and which there are."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f"; did you mean {near!r}?" if near else ""
    choices = ", ".join(names) if names else "none"
    return f"unknown {kind} {name!r}{hint} (there are: {choices})"
