# SPDX-License-Identifier: MIT
"""Features of requests for `tokenspeed check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def features() -> Sequence[Mapping[str, object]]:
    """A pattern, any object, a schema behind thinking, and a pattern that is none."""
    return [
        {"regex": "[a-z]{3,}"},
        {"json_object": True},
        {"json_schema": {"type": "integer"}, "reasoning": "qwen3"},
        {"regex": "("},
    ]
