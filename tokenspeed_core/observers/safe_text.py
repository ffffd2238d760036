# SPDX-License-Identifier: MIT
"""Any text, made fit for one line of a log."""

from __future__ import annotations

MAX_CHARACTERS = 200


def safe(text: str, *, limit: int = MAX_CHARACTERS) -> str:
    """Return at most `limit` characters; control characters and lone surrogates are escaped."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(each if each.isprintable() else _escaped(each) for each in cut)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
