# SPDX-License-Identifier: MIT
"""Control operations and the gate, where what blocks a rank runs on all of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from tokenspeed_hookspecs.requests import ControlReply

if TYPE_CHECKING:
    from tokenspeed_hookspecs.rounds import Round


@frozen
class GatedOperation:
    """One blocking operation, run in the round in which every data-parallel rank has it at its
    head. `code` is positive and equal on ranks that hold the same operation (those below 16 are the
    core's); `run` is called on the loop thread; what it returns is the reply, None sends none.

    A frontend's operation must reply, and succeeds only if it does so on every rank; `succeeded` is
    then called on each, ahead of the reply, and otherwise `failed` on each: what must be done on
    all ranks or on none is got ready by `run`, put in place by the one and taken back by the other.
    With `clears_cache` the cached prefixes go first, on every rank or on none; where that fails a
    frontend's operation is refused without a call, and a plugin's own waits."""

    code: int
    name: str
    run: Callable[[], ControlReply | None]
    clears_cache: bool = False
    succeeded: Callable[[Round], None] | None = None
    failed: Callable[[], None] | None = None


@frozen
class ControlOperation:
    """A control request a plugin answers.

    `handle` gets the request's arguments when it arrives, on every rank of the replica. It returns
    the reply, or a `GatedOperation` whose reply follows from the gate.
    """

    name: str
    handle: Callable[[Mapping[str, object]], ControlReply | GatedOperation]
    help: str = ""


class Gate(Protocol):
    """Where plugins leave operations; frontend operations go first, one operation a round."""

    def enqueue(self, operation: GatedOperation) -> None:
        """Queue an operation; it runs in a later round. ValueError: a code below 1."""
        ...


class Controls(Protocol):
    """The pause state, for reading."""

    @property
    def admissions_blocked(self) -> bool:
        """Whether new requests are withheld from the scheduler."""
        ...

    @property
    def forwards_blocked(self) -> bool:
        """Whether rounds plan no forward."""
        ...

    @property
    def is_releasing(self) -> bool:
        """Whether memory is released, or will be once the engine is empty."""
        ...

    def describe(self) -> Mapping[str, object]:
        """The state's `name` (running, paused, frozen, released), the operation that is `draining`
        or None, the `released` memory regions, and the `weight_version` the last update named."""
        ...
