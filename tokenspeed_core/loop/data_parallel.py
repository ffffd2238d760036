# SPDX-License-Identifier: MIT
"""The exchange that keeps data-parallel ranks forwarding in step.

Their engines have different requests, but the model's collectives span them: a rank without a batch
forwards too, idly, in every round in which another has one.
"""

from __future__ import annotations

from array import array

from attrs import frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_hookspecs import Batch, ForwardTable, Group

INT, COLUMNS = "q", 4


@frozen
class InStep:
    """What a round's exchange says: the table, whether this rank must forward idly, and whether
    some rank wants to stop."""

    table: ForwardTable
    needs_idle_forward: bool
    stop: bool


class DataParallelRound:
    """One gather a round; `was_idle` says that no rank had tokens in the last one."""

    def __init__(self, world: Group) -> None:
        self._world = world
        self.was_idle = True

    def exchange(self, batch: Batch | None, *, stop: bool) -> InStep:
        """Tell what this rank forwards, and learn what the others do."""
        tokens = 0 if batch is None else batch.num_tokens
        mine = [0, 0, 0, int(stop)]
        if batch is not None and tokens:
            mine = [tokens, len(batch.request_ids), batch.num_extends, int(stop)]
        rows = [_row(part) for part in self._world.gather(array(INT, mine).tobytes())]
        columns = tuple(zip(*rows, strict=True))
        self.was_idle = not any(columns[0])
        return InStep(
            ForwardTable(columns[0], columns[1], columns[2]),
            needs_idle_forward=not tokens and not self.was_idle,
            stop=any(columns[3]),
        )


def _row(part: bytes) -> list[int]:
    if len(part) != COLUMNS * 8:
        raise EngineError(
            f"a data-parallel rank sent {len(part)} bytes about its batch, {COLUMNS * 8} were "
            "expected; the ranks are not in step or run different versions"
        )
    return array(INT, part).tolist()
