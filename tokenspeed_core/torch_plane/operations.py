# SPDX-License-Identifier: MIT
"""The control operations only the device side can carry out, by their names.

Those of the weights are made on every rank or on none: `carry_out` gets them ready, and `settle`
either puts in place what is ready or takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec
from attrs import define, field, frozen

from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.torch_plane.memory import WEIGHTS, give_back
from tokenspeed_core.torch_plane.profiler import ProfileOrder, Profiler
from tokenspeed_core.torch_plane.refusal import RefusedError
from tokenspeed_core.torch_plane.runner import Runner
from tokenspeed_core.torch_plane.update_groups import GroupAddress, UpdateGroups
from tokenspeed_core.torch_plane.weight_updates import (
    FromDisk,
    FromGroup,
    FromTensor,
    Update,
    WeightUpdates,
)
from tokenspeed_core.torch_plane.weights_aside import WeightsAside
from tokenspeed_hookspecs import ControlReply, ControlRequest

Arguments = Mapping[str, object]
Order = TypeVar("Order")
START, STOP = 1, 2


@frozen(kw_only=True)
class _Profile:
    """`type` is 1 to start and 2 to stop."""

    type: int
    profile_by_stage: bool | None = None


@frozen(kw_only=True)
class _Leaving:
    group_name: str = "weight_update_group"


def _nothing() -> None:
    """There is nothing to put in place, or to take back."""


@frozen(eq=False)
class _Ready:
    """What an operation answers, and what is left of it to do once every rank has as much."""

    message: str
    apply: Callable[[], None] = _nothing
    undo: Callable[[], None] = _nothing


@define(eq=False, kw_only=True)
class Operations:
    """Runs on the plane's thread; the verbs answer with what they have ready, or refuse."""

    runner: Runner
    profiler: Profiler
    updates: WeightUpdates
    groups: UpdateGroups
    aside: WeightsAside
    _ready: _Ready | None = field(default=None, init=False)

    def carry_out(self, request: ControlRequest) -> ControlReply:
        """Carry out one request, or get it ready to be settled; a refusal changed nothing."""
        assert self._ready is None, f"{request.name} came before the last one was settled"
        verbs: Mapping[str, Callable[[Arguments], str | _Ready]] = {
            "profile": self._profile,
            "init_weights_update_group": self._join,
            "destroy_weights_update_group": self._leave,
            "update_weights_from_disk": self._loading(FromDisk, self.updates.from_disk),
            "update_weights_from_tensor": self._loading(FromTensor, self.updates.from_tensor),
            "update_weights_from_distributed": self._loading(FromGroup, self.updates.from_group),
        }
        verb = verbs.get(request.name)
        if verb is None:
            return _refused(request.name, "the torch plane has no such operation")
        try:
            answer = verb(request.arguments)
        except (RefusedError, ModelError) as error:
            return _refused(request.name, str(error))
        if isinstance(answer, str):
            return ControlReply(request.name, success=True, message=answer)
        self._ready = answer
        return ControlReply(request.name, success=True, message=answer.message)

    def settle(self, *, agreed: bool) -> None:
        """Put in place what is ready, or take it back; do nothing where nothing is."""
        ready, self._ready = self._ready, None
        if ready is not None:
            (ready.apply if agreed else ready.undo)()
            # Tensors that were aside, or that were replaced, leave as much behind.
            del ready
            give_back(self.runner.decoder.device)

    def _profile(self, arguments: Arguments) -> str:
        asked = _order(_Profile, arguments)
        if asked.type == STOP:
            return self.profiler.stop()
        if asked.type != START:
            raise RefusedError(f"type: expected 1 to start or 2 to stop, got {asked.type}")
        if asked.profile_by_stage:
            raise RefusedError("profile_by_stage: the torch plane records all forwards alike")
        return self.profiler.start(_order(ProfileOrder, arguments))

    def _join(self, arguments: Arguments) -> _Ready:
        address = _order(GroupAddress, arguments)
        self.groups.join(address)
        told = f"joined group {address.group_name!r} of {address.world_size}"
        return _Ready(told, undo=partial(self.groups.leave, address.group_name))

    def _leave(self, arguments: Arguments) -> _Ready:
        name = _order(_Leaving, arguments).group_name
        self.groups.check(name)
        return _Ready(f"left group {name!r}", apply=partial(self.groups.leave, name))

    def _loading(
        self, kind: type[Order], load: Callable[[Order], Update]
    ) -> Callable[[Arguments], _Ready]:
        def act(arguments: Arguments) -> _Ready:
            order = _order(kind, arguments)
            if WEIGHTS in self.runner.released:
                raise RefusedError("the weights' memory is released; resume it before an update")
            update = load(order)
            told = f"replaced {len(update.parts)} tensors"
            return _Ready(told, apply=partial(self._replace, update))

        return act

    def _replace(self, update: Update) -> None:
        self.updates.apply(update)
        self.aside.are_changed = True


def _order(kind: type[Order], arguments: Arguments) -> Order:
    """Arguments as a record; what is not given, or given as None, has its default."""
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return msgspec.convert(given, kind, builtin_types=(bytes, bytearray, memoryview))
    except msgspec.ValidationError as error:
        raise RefusedError(str(error)) from error


def _refused(name: str, message: str) -> ControlReply:
    return ControlReply(name, success=False, message=message)
