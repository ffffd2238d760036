# SPDX-License-Identifier: MIT
"""Features of requests for `tokenspeed check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def features() -> Sequence[Mapping[str, object]]:
    """A key, another one, and one that is no text."""
    return [{"api_key": "gold"}, {"api_key": "free"}, {"api_key": 7}]
