# SPDX-License-Identifier: MIT
"""Plugins that do what they must pass every check, inherited as a third party inherits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import field, frozen

from tokenspeed_core.observers.batch_log import BatchLog
from tokenspeed_core.observers.finish_line import FinishLine
from tokenspeed_core.testing import PluginContract
from tokenspeed_hookspecs import (
    AdmissionStage,
    Batch,
    ControlOperation,
    ControlReply,
    DataPlane,
    DataPlaneExtension,
    Engine,
    Hold,
    Pass,
    Plugin,
    Refuse,
    Request,
    Round,
    Verdict,
    hookimpl,
)


class Counting:
    """The device side: counts the inputs it got."""

    name = "healthy"

    def __init__(self) -> None:
        self.count = 0

    def prepare_inputs(self, batch: Batch, value: object) -> None:
        """Count."""
        self.count += 1


class Healthy(Plugin):
    """Holds requests of feature `wait`, refuses negative ones, counts forwards, answers `count`."""

    name = "healthy"
    features = ("wait",)

    @frozen
    class Options:
        """What it is set to."""

        most: int = field(default=5, metadata={"help": "the longest wait", "minimum": 1})
        words: tuple[str, ...] = field(default=("a", "b"), metadata={"help": "some words"})

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self.left: dict[str, int] = {}
        self.forwards = 0

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        return [Counting()]

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [self]

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        return [ControlOperation("count", self._answer)]

    @hookimpl
    def round_report(self, round: Round) -> bytes:
        return str(len(self.left)).encode()

    @hookimpl
    def request_aborted(self, round: Round) -> None:
        for request_id in round.aborted:
            self.left.pop(request_id, None)

    @hookimpl
    def dispatch(self, round: Round) -> None:
        assert round.dispatch is not None
        round.dispatch.inputs[self.name] = self.forwards

    @hookimpl
    def committed(self, round: Round) -> None:
        self.forwards += 1

    @hookimpl
    def drain_blocked(self, round: Round) -> bool:
        return bool(self.left)

    def enter(self, request: Request) -> Verdict:
        """Hold whoever waits."""
        wait = request.features.get("wait", 0)
        if not isinstance(wait, int) or wait < 0:
            return Refuse(f"wait: expected a whole number from 0, got {wait!r}", 400)
        if not wait:
            return Pass()
        self.left[request.request_id] = min(wait, self.options.most)
        return Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Count down."""
        for each in held:
            self.left[each.request_id] = self.left.get(each.request_id, 1) - 1
        return [int(self.left[each.request_id] <= 0) for each in held]

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let pass what waited."""
        for each, code in zip(held, agreed, strict=True):
            if code:
                self.left.pop(each.request_id, None)
        return [Pass() if code else Hold() for code in agreed]

    def leave(self, request_id: str) -> None:
        """Forget one that ended."""
        self.left.pop(request_id, None)

    def _answer(self, arguments: Mapping[str, object]) -> ControlReply:
        return ControlReply("count", success=not arguments, values={"forwards": self.forwards})


class TestHealthy(PluginContract):
    """A plugin with both halves, a stage, a report and an operation."""

    plugin = Healthy
    options: ClassVar[Mapping[str, Any]] = {"most": 3}
    features = ({"wait": 2}, {"wait": 9}, {"wait": -1})


class TestBatchLog(PluginContract):
    """The built-in batch log."""

    plugin = BatchLog


class TestFinishLine(PluginContract):
    """The built-in finish line."""

    plugin = FinishLine
    options: ClassVar[Mapping[str, Any]] = {"stats": True}
