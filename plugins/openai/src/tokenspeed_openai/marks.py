# SPDX-License-Identifier: MIT
"""Marks in a text that comes in pieces."""

from __future__ import annotations


def open_at(text: str, mark: str) -> int:
    """Where a mark may begin at the end of a text; the text's length if none does."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return len(text) - next((n for n in lengths if text.endswith(mark[:n])), 0)
