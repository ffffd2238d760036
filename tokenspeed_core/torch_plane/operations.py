# SPDX-License-Identifier: MIT
"""The control operations only the device side can carry out, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from attrs import frozen

from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.torch_plane.memory import WEIGHTS
from tokenspeed_core.torch_plane.profiler import ProfileOrder, Profiler
from tokenspeed_core.torch_plane.refusal import RefusedError
from tokenspeed_core.torch_plane.runner import Runner
from tokenspeed_core.torch_plane.update_groups import GroupAddress, UpdateGroups
from tokenspeed_core.torch_plane.weight_updates import (
    FromDisk,
    FromGroup,
    FromTensor,
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


@frozen(eq=False, kw_only=True)
class Operations:
    """Runs on the plane's thread; the verbs answer with a message, or refuse."""

    runner: Runner
    profiler: Profiler
    updates: WeightUpdates
    groups: UpdateGroups
    aside: WeightsAside

    def carry_out(self, request: ControlRequest) -> ControlReply:
        """Carry out one request; a refusal changed nothing."""
        verbs: Mapping[str, Callable[[Arguments], str]] = {
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
            return ControlReply(request.name, success=True, message=verb(request.arguments))
        except (RefusedError, ModelError) as error:
            return _refused(request.name, str(error))

    def _profile(self, arguments: Arguments) -> str:
        asked = _order(_Profile, arguments)
        if asked.type == STOP:
            return self.profiler.stop()
        if asked.type != START:
            raise RefusedError(f"type: expected 1 to start or 2 to stop, got {asked.type}")
        if asked.profile_by_stage:
            raise RefusedError("profile_by_stage: the torch plane records all forwards alike")
        return self.profiler.start(_order(ProfileOrder, arguments))

    def _join(self, arguments: Arguments) -> str:
        address = _order(GroupAddress, arguments)
        self.groups.join(address)
        return f"joined group {address.group_name!r} of {address.world_size}"

    def _leave(self, arguments: Arguments) -> str:
        name = _order(_Leaving, arguments).group_name
        self.groups.leave(name)
        return f"left group {name!r}"

    def _loading(
        self, kind: type[Order], load: Callable[[Order], int]
    ) -> Callable[[Arguments], str]:
        def act(arguments: Arguments) -> str:
            order = _order(kind, arguments)
            if WEIGHTS in self.runner.released:
                raise RefusedError("the weights' memory is released; resume it before an update")
            count = load(order)
            self.aside.are_changed = True
            return f"replaced {count} tensors"

        return act


def _order(kind: type[Order], arguments: Arguments) -> Order:
    """Arguments as a record; what is not given, or given as None, has its default."""
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return msgspec.convert(given, kind, builtin_types=(bytes, bytearray, memoryview))
    except msgspec.ValidationError as error:
        raise RefusedError(str(error)) from error


def _refused(name: str, message: str) -> ControlReply:
    return ControlReply(name, success=False, message=message)
