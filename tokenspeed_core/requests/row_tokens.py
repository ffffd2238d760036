# SPDX-License-Identifier: MIT
"""Which of a forward's tokens each row keeps, and so what the scheduler is told of it."""

from __future__ import annotations

import numpy as np

from tokenspeed_core.errors import EngineError
from tokenspeed_core.requests.flight import InFlight
from tokenspeed_hookspecs import CommitOutcome, ForwardResult


class RowTokens:
    """A forward's tokens by row, and the outcome that grows as its rows are committed.

    `flat[row]` is the row's first kept token or -1; `outcome.more` has the rows that keep several.
    Rows in `finished` and `aborted` left the table in this commit.
    """

    def __init__(self, flight: InFlight, result: ForwardResult) -> None:
        count = len(flight.batch.request_ids)
        self.array = np.asarray(result.tokens, dtype=np.int64)
        self._starts: list[int] | None = None
        if result.lengths is not None:
            self._starts = [0, *np.cumsum(result.lengths).tolist()]
        expected = count if self._starts is None else self._starts[-1]
        if len(self.array) != expected:
            raise EngineError(
                f"forward {flight.number} has {count} rows and should report {expected} tokens, "
                f"got {len(self.array)}; the data plane lost or added rows"
            )
        self.flat: list[int] = self.array.tolist() if self._starts is None else [-1] * count
        self.finished: list[int] = []
        self.aborted: list[int] = []
        self.suspect: list[int] = []
        self._more: dict[int, list[int]] = {}

    @property
    def outcome(self) -> CommitOutcome:
        """What became of each row."""
        return CommitOutcome(
            self.flat, self._more, self.finished, self.aborted, suspect=self.suspect
        )

    def span(self, row: int) -> tuple[int, int]:
        """Where the row's tokens are in the flat list."""
        if self._starts is None:
            return row, row + 1
        return self._starts[row], self._starts[row + 1]

    def drop(self, row: int) -> None:
        """Keep none of the row's tokens."""
        self.flat[row] = -1

    def keep(self, row: int, stop: int) -> None:
        """Keep the row's tokens before `stop`; the rest came after the request's end."""
        if self._starts is not None and stop > self._starts[row]:
            kept = self.array[self._starts[row] : stop].tolist()
            self.flat[row] = kept[0]
            if len(kept) > 1:
                self._more[row] = kept
