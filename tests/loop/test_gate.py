# SPDX-License-Identifier: MIT
"""One blocking operation a round, on every data-parallel rank together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.controls import Controls
from tokenspeed_core.loop.gate import Gate
from tokenspeed_hookspecs import ControlReply, GatedOperation


class World:
    """A group whose other member always sends the same row."""

    size = 2
    index = 0

    def __init__(self, other: Sequence[int]) -> None:
        self.other = other

    def agree_min(self, values: Sequence[int]) -> list[int]:
        return [min(pair) for pair in zip(values, self.other, strict=True)]

    def agree_max(self, values: Sequence[int]) -> list[int]:
        return [max(pair) for pair in zip(values, self.other, strict=True)]

    def total(self, values: Sequence[int]) -> list[int]:
        return [sum(pair) for pair in zip(values, self.other, strict=True)]

    def gather(self, payload: bytes) -> list[bytes]:
        return [payload, payload]

    def broadcast(self, source: int, payload: bytes) -> bytes:
        return payload


def operation(name: str, code: int, done: list[str]) -> GatedOperation:
    """An operation that notes its name when it runs."""

    def run() -> ControlReply:
        done.append(name)
        return ControlReply(name, success=True)

    return GatedOperation(code, name, run)


def test_frontend_operations_go_first_one_a_round() -> None:
    """With both queues full, the frontend's head runs first and only one runs a round."""
    done: list[str] = []
    controls = Controls()
    gate = Gate(None, controls)
    gate.enqueue(operation("internal", 1, done))
    gate.enqueue_requested(operation("asked", 2, done))
    gate.run()
    assert done == ["asked"]
    gate.run()
    assert done == ["asked", "internal"]
    assert not gate.is_busy
    assert [reply.name for reply in controls.take_replies()] == ["asked", "internal"]


@pytest.mark.parametrize(
    ("other", "ran"),
    [([0, 0, 0, 0, 0, 0], []), ([-1, 5, -5, 0, 0, 0], ["asked"])],
    ids=["the other rank has none", "both have it"],
)
def test_an_operation_waits_for_every_rank(other: list[int], ran: list[str]) -> None:
    """A head pops only in the round in which every rank holds one."""
    done: list[str] = []
    gate = Gate(World(other), Controls())
    gate.enqueue_requested(operation("asked", 5, done))
    gate.run()
    assert done == ran


def test_different_operations_at_the_heads_end_the_rank() -> None:
    """Ranks that hold different operations cannot go on together."""
    gate = Gate(World([-1, 6, -6, 0, 0, 0]), Controls())
    gate.enqueue_requested(operation("asked", 5, []))
    with pytest.raises(EngineError, match="different frontend operations"):
        gate.run()


def test_a_code_below_one_is_refused() -> None:
    """Code 0 means an empty queue, so an operation may not use it."""
    with pytest.raises(ValueError, match="codes start at 1"):
        Gate(None, Controls()).enqueue(operation("bad", 0, []))


def test_an_operation_that_raises_is_named() -> None:
    """What a gated operation raises ends the rank with the operation's name."""

    def run() -> ControlReply:
        raise ZeroDivisionError("oops")

    gate = Gate(None, Controls())
    gate.enqueue(GatedOperation(1, "swap", run))
    with pytest.raises(EngineError, match="gated operation 'swap' failed: ZeroDivisionError: oops"):
        gate.run()
