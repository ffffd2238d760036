# SPDX-License-Identifier: MIT
"""What an engine's process and its parent tell each other: a line of JSON each, through pipes.

The parent writes one order to the engine's standard input and keeps the pipe open: its end is the
parent's. The engine answers on its standard output.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
from attrs import frozen


@frozen(kw_only=True)
class EngineOrder:
    """Which engine to run: `config` as TOML, `handshake` the address of the client or gateway,
    `meeting` the folder where the ranks of several engines find each other, `leftovers` the folders
    that nobody removes when the parent is killed."""

    config: str
    handshake: str
    index: int = 0
    meeting: str | None = None
    leftovers: tuple[str, ...] = ()
    log_level: str = "warning"

    def to_line(self) -> bytes:
        """Return the order as it goes through the pipe."""
        return _line(self)

    @classmethod
    def from_line(cls, line: bytes) -> EngineOrder:
        """Read an order."""
        given = json.loads(line)
        return cls(**{**given, "leftovers": tuple(given["leftovers"])})


@frozen(kw_only=True)
class EngineReport:
    """What an engine says besides its log: `output` is where it sends once it is connected,
    `problems` are why it ends, `was_refused` if they lie in what was asked for."""

    output: str | None = None
    problems: tuple[str, ...] = ()
    was_refused: bool = False

    def to_line(self) -> bytes:
        """Return the report as it goes through the pipe."""
        return _line(self)

    @classmethod
    def from_line(cls, line: bytes) -> EngineReport:
        """Read a report; ValueError if it is none."""
        given = json.loads(line)
        return cls(**{**given, "problems": tuple(given["problems"])})


def _line(message: Any) -> bytes:
    return json.dumps(attrs.asdict(message)).encode() + b"\n"
