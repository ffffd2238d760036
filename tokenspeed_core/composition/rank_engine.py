# SPDX-License-Identifier: MIT
"""What a rank's plugins see of it. Plugins are made before the loop is, so it is bound later."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

from attrs import define, field

from tokenspeed_core.composition.instruments import NoInstruments
from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_hookspecs import (
    Clock,
    Controls,
    DataPlane,
    Gate,
    Instruments,
    ModelInfo,
    Ranks,
    Requests,
    Scheduler,
    Tokenizer,
)

T = TypeVar("T")


@define(eq=False)
class RankEngine:
    """The contract's `Engine`. `clock`, `log`, `ranks` and `tokenizer` are there from the start,
    `instruments` from the hook of that name on, the rest from the hook `start` on; asking earlier
    for those is an EngineError."""

    clock: Clock
    log: logging.Logger
    ranks: Ranks
    tokenizer: Tokenizer | None = None
    is_replay: bool = False
    instruments: Instruments = field(factory=NoInstruments)
    _scheduler: Scheduler | None = None
    _data_plane: DataPlane | None = None
    _loop: EventLoop | None = None

    def bind_drivers(self, scheduler: Scheduler, data_plane: DataPlane) -> None:
        """Set the drivers, once they are built."""
        self._scheduler, self._data_plane = scheduler, data_plane

    def bind_loop(self, loop: EventLoop) -> None:
        """Set the loop, before any plugin starts."""
        self._loop = loop

    @property
    def watched_by(self) -> Instruments | None:
        """The instruments, if any plugin brought some."""
        return None if isinstance(self.instruments, NoInstruments) else self.instruments

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, for reading."""
        return _bound(self._scheduler, "scheduler")

    @property
    def data_plane(self) -> DataPlane:
        """The device side."""
        return _bound(self._data_plane, "data_plane")

    @property
    def model(self) -> ModelInfo:
        """What the engine knows of its model."""
        return self.data_plane.model

    @property
    def requests(self) -> Requests:
        """The registered requests."""
        return _bound(self._loop, "requests").requests

    @property
    def controls(self) -> Controls:
        """The pause state."""
        return _bound(self._loop, "controls").controls

    @property
    def counters(self) -> Mapping[str, int]:
        """What the rank has done since its start."""
        return _bound(self._loop, "counters").counters

    @property
    def gate(self) -> Gate:
        """Where operations wait for every rank."""
        return _bound(self._loop, "gate").gate


def _bound(value: T | None, name: str) -> T:
    if value is None:
        raise EngineError(
            f"engine.{name} is not there yet; read it in the hook start or later, not in __init__"
        )
    return value
