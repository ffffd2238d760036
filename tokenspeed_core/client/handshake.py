# SPDX-License-Identifier: MIT
"""Who has called, who is ready and who is registered.

Anybody on the host may talk to the sockets of a tcp deployment, and an engine may be restarted
while the others still load. So what is not from an expected engine is dropped, and an engine that
says HELLO again starts over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum

from attrs import define, field

from tokenspeed_core.wire.handshake import HELLO, unpack_identity, unpack_ready, unpack_status
from tokenspeed_core.wire.packing import WireError
from tokenspeed_hookspecs import EngineInfo

Drop = Callable[[Sequence[bytes], object], None]


class Stage(Enum):
    """How far an engine has come."""

    SILENT = "has not called"
    GREETED = "called and was told the addresses, but did not say READY"
    READY = "is ready, but did not register"
    REGISTERED = "is registered"


@define(eq=False)
class _Caller:
    has_called: bool = False
    is_ready: bool = False
    info: EngineInfo | None = None

    @property
    def stage(self) -> Stage:
        """How far it has come. READY and registration come by different ways, in any order."""
        if not self.has_called:
            return Stage.SILENT
        if not self.is_ready:
            return Stage.GREETED
        return Stage.READY if self.info is None else Stage.REGISTERED


@define(eq=False)
class Handshake:
    """One accept. `init` is what a HELLO is answered with, `reply` sends it, `drop` is told of
    messages that do not count. `registered` ends with the engines, or with a WireError where one
    registers with what cannot be served."""

    _indices: range
    _init: bytes
    _reply: Callable[[list[bytes]], None]
    _drop: Drop
    registered: asyncio.Future[Sequence[EngineInfo]]
    _callers: dict[int, _Caller] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._callers = {index: _Caller() for index in self._indices}

    def take_status(self, frames: Sequence[bytes]) -> None:
        """Take a message of the handshake socket."""
        try:
            index, payload = self._from(frames)
            status = unpack_status(payload)
        except WireError as error:
            self._drop(frames, error)
            return
        caller = self._callers[index]
        if status == HELLO:
            self._callers[index] = _Caller(has_called=True)
            self._reply([frames[0], self._init])
        elif caller.has_called:
            caller.is_ready = True
            self._check()
        else:
            self._drop(frames, f"engine {index} says READY before HELLO")

    def take_registration(self, frames: Sequence[bytes]) -> None:
        """Take a message of the input socket."""
        try:
            index, payload = self._from(frames)
        except WireError as error:
            self._drop(frames, error)
            return
        caller = self._callers[index]
        if not caller.has_called:
            self._drop(frames, f"engine {index} registers before HELLO")
            return
        try:
            caller.info = unpack_ready(payload, index)
        except WireError as error:
            if not self.registered.done():
                self.registered.set_exception(WireError(f"engine {index} registered with {error}"))
            return
        self._check()

    def missing(self) -> str:
        """The engines that are not registered, and how far each has come."""
        stages = {index: caller.stage for index, caller in self._callers.items()}
        late = [(index, stage) for index, stage in stages.items() if stage is not Stage.REGISTERED]
        return "; ".join(f"engine {index} {stage.value}" for index, stage in late)

    def _from(self, frames: Sequence[bytes]) -> tuple[int, bytes]:
        if len(frames) != 2:
            raise WireError(f"expected an identity and one frame, got {len(frames)} frames")
        index = unpack_identity(frames[0])
        if index not in self._callers:
            raise WireError(f"expected an engine of {self._indices}, got {index}")
        return index, frames[1]

    def _check(self) -> None:
        infos = [caller.info for caller in self._callers.values() if caller.is_ready]
        known = [info for info in infos if info is not None]
        if len(known) == len(self._callers) and not self.registered.done():
            self.registered.set_result(known)
