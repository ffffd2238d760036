# SPDX-License-Identifier: MIT
"""What a follower is told on its standard input, in one line of JSON."""

from __future__ import annotations

import json

import attrs
from attrs import frozen


@frozen(kw_only=True)
class FollowerOrder:
    """Which rank to be: `config` as TOML, and the folder where all ranks meet."""

    config: str
    rank: int
    folder: str

    def to_line(self) -> bytes:
        """Return the order as it goes through the pipe."""
        return json.dumps(attrs.asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> FollowerOrder:
        """Read an order."""
        return cls(**json.loads(line))
