# SPDX-License-Identifier: MIT
"""What a plugin may touch of the rank it belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from attrs import frozen

from tokenspeed_hookspecs.control import Controls, Gate
from tokenspeed_hookspecs.data_plane import DataPlane, ModelInfo
from tokenspeed_hookspecs.instruments import Instruments
from tokenspeed_hookspecs.ranks import Ranks
from tokenspeed_hookspecs.requests import Requests
from tokenspeed_hookspecs.scheduler import Scheduler
from tokenspeed_hookspecs.serving import Tokenizer


class Clock(Protocol):
    """Seconds that never go back; a test may hold it. Not for decisions that ranks must share."""

    def __call__(self) -> float:
        """The time now, in seconds from an arbitrary start."""
        ...


class Engine(Protocol):
    """One rank's engine, as its plugins see it. Everything is set before `start`."""

    @property
    def requests(self) -> Requests:
        """The registered requests."""
        ...

    @property
    def scheduler(self) -> Scheduler:
        """Sizes and statistics."""
        ...

    @property
    def ranks(self) -> Ranks:
        """The groups this rank agrees with."""
        ...

    @property
    def controls(self) -> Controls:
        """The pause state."""
        ...

    @property
    def gate(self) -> Gate:
        """Where operations of all ranks meet."""
        ...

    @property
    def data_plane(self) -> DataPlane:
        """The device side of this rank."""
        ...

    @property
    def model(self) -> ModelInfo:
        """What the engine serves."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's vocabulary; None for an engine that has only token ids. There from the
        start."""
        ...

    @property
    def instruments(self) -> Instruments:
        """Where to record numbers; they go nowhere unless a plugin answers `instruments`."""
        ...

    @property
    def clock(self) -> Clock:
        """Time, as everything on this rank reads it."""
        ...

    @property
    def is_replay(self) -> bool:
        """Whether the rounds of a recording run again. A plugin then asks nothing outside of the
        engine, which has no device: its reports and what it said to `cache_clearing` are given
        again, whatever it returns."""
        ...

    @property
    def log(self) -> logging.Logger:
        """The rank's logger."""
        ...


@frozen
class CliCommand:
    """A subcommand a plugin adds: `run` gets the arguments after its name, returns an exit code."""

    name: str
    help: str
    run: Callable[[list[str]], int]


@frozen
class RequestFlag:
    """A flag of the commands that send requests: `--<name> TEXT` makes `read(TEXT)` the request's
    feature `feature`. A ValueError of `read` is told as a wrong flag."""

    name: str
    feature: str
    help: str
    read: Callable[[str], object] = str
    metavar: str = "TEXT"
