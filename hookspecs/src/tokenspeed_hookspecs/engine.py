# SPDX-License-Identifier: MIT
"""What a plugin may touch of the rank it belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from attrs import frozen

from tokenspeed_hookspecs.control import Controls, Gate
from tokenspeed_hookspecs.data_plane import DataPlane, ModelInfo
from tokenspeed_hookspecs.ranks import Ranks
from tokenspeed_hookspecs.requests import Requests
from tokenspeed_hookspecs.scheduler import Scheduler


class Clock(Protocol):
    """Seconds that never go back; a test may hold it. Not for decisions that ranks must share."""

    def __call__(self) -> float: ...


class Engine(Protocol):
    """One rank's engine, as its plugins see it. Everything is set before `start`."""

    @property
    def requests(self) -> Requests: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def ranks(self) -> Ranks: ...
    @property
    def controls(self) -> Controls: ...
    @property
    def gate(self) -> Gate: ...
    @property
    def data_plane(self) -> DataPlane: ...
    @property
    def model(self) -> ModelInfo: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def log(self) -> logging.Logger: ...


@frozen
class CliCommand:
    """A subcommand a plugin adds: `run` gets the arguments after its name, returns an exit code."""

    name: str
    help: str
    run: Callable[[list[str]], int]
