# SPDX-License-Identifier: MIT
"""Forwards handed out and not yet answered.

The wheel owes one answer per dispatched row, in order, and one answer too many kills the process.
So an answer is only ever built from the forward at the head of this queue, whole.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from attrs import define, field

from tokenspeed_core.errors import EngineError
from tokenspeed_core.scheduling.population import Tracked
from tokenspeed_hookspecs import Batch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@define(eq=False)
class Rows:
    """Who is in a batch, shared by the batches of successive rounds while nothing changes.

    `reserves` is the bundle of the decode rows' reserve events, made when it is first needed.
    """

    request_ids: list[str]
    requests: list[Tracked]
    slots: npt.NDArray[np.int64]
    incarnations: list[int]
    num_extends: int
    results: list[Any]
    reserves: Any = None
    _by_id: dict[str, int] | None = None

    @classmethod
    def of(cls, requests: list[Tracked], *, slots: npt.NDArray[np.int64], num_extends: int) -> Rows:
        """The rows of these requests, the first `num_extends` of them prompt chunks."""
        return cls(
            request_ids=[request.request_id for request in requests],
            requests=requests,
            slots=slots,
            incarnations=[request.incarnation for request in requests],
            num_extends=num_extends,
            results=[request.result for request in requests],
        )

    def row_of(self, request_id: str) -> int | None:
        """The request's row, if it has one."""
        if self._by_id is None:
            self._by_id = {name: row for row, name in enumerate(self.request_ids)}
        return self._by_id.get(request_id)


@define(eq=False)
class Forward:
    """A batch in flight; `mid_chunk` and `late` rows must come back without a token."""

    batch: Batch
    rows: Rows
    mid_chunk: frozenset[int]
    late: set[int] = field(factory=set)

    @classmethod
    def of(cls, batch: Batch, rows: Rows) -> Forward:
        """The forward of a batch that a plan hands out."""
        chunks = range(batch.num_extends)
        return cls(batch, rows, frozenset(row for row in chunks if batch.is_mid_chunk(row)))


@define(eq=False)
class Flight:
    """The forwards in flight, oldest first."""

    _forwards: deque[Forward] = field(factory=deque)

    def add(self, forward: Forward) -> None:
        """A forward was handed out."""
        self._forwards.append(forward)

    def oldest(self, batch: Batch) -> Forward:
        """The forward of that batch; EngineError unless it is the oldest in flight."""
        if self._forwards and self._forwards[0].batch is batch:
            return self._forwards[0]
        later = any(forward.batch is batch for forward in self._forwards)
        cause = "an older forward is still unanswered" if later else "it was answered before"
        raise EngineError(
            f"expected the answers of the oldest of {len(self._forwards)} forwards in flight, got "
            f"a batch of {batch.request_ids[:3]}...: {cause}, or it never came from a plan"
        )

    def pop(self) -> Forward:
        """Take the oldest forward out: its answers are on their way."""
        return self._forwards.popleft()

    def names(self, request_id: str) -> bool:
        """Whether a forward in flight has a row of the request."""
        return any(forward.rows.row_of(request_id) is not None for forward in self._forwards)

    def mark_late(self, request_id: str) -> None:
        """The request ended: its rows in flight must come back without a token."""
        for forward in self._forwards:
            row = forward.rows.row_of(request_id)
            if row is not None:
                forward.late.add(row)
