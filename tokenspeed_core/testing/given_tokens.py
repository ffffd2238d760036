# SPDX-License-Identifier: MIT
"""How many tokens each admitted request was given, and so which one comes next.

Counts live in columns, one a request; a slot points at its request's column. Decode rows therefore
cost a few array operations however many there are, and a single one while the driver hands out the
same array of slots again. A slot changes its owner only at an extend row, at a restore, or at a
decode row whose token comes from the host; only those are looked at one by one. Column 0 belongs to
nobody.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenspeed_hookspecs import Batch

FIRST_TOKEN = 1000
Ints = npt.NDArray[np.int64]


class GivenTokens:
    """The admitted requests and their counts."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._free: list[int] = []
        self._counts: Ints = np.zeros(1, dtype=np.int64)
        self._slot_of: Ints = np.zeros(1, dtype=np.int64)
        self._column_at: Ints = np.zeros(1, dtype=np.int64)
        self._steady_slots: Ints | None = None
        self._steady_columns = self._steady_indices = np.zeros(0, dtype=np.int64)
        self._steady_rounds = 0

    def __len__(self) -> int:
        return len(self._columns)

    def admit(self, request_id: str) -> None:
        """Begin to count for a request."""
        if request_id in self._columns:
            raise AssertionError(f"request {request_id!r} was admitted twice without a release")
        if not self._free:
            self._grow(2 * len(self._counts) + 64)
        column = self._free.pop()
        self._columns[request_id] = column
        self._counts[column] = self._slot_of[column] = 0

    def release(self, request_id: str) -> int:
        """Forget a request; returns how many tokens it was given."""
        column = self._columns.pop(request_id, None)
        if column is None:
            raise AssertionError(
                f"request {request_id!r} was released twice, or never admitted to the data plane"
            )
        self._settle()
        slot = self._slot_of[column]
        if self._column_at[slot] == column:
            self._column_at[slot] = 0
        self._free.append(column)
        return int(self._counts[column])

    def bind(self, request_id: str, slot: int) -> int:
        """Let a slot belong to a request from now on; returns the request's column."""
        column = self._columns.get(request_id)
        if column is None:
            raise AssertionError(
                f"a forward or restore names {request_id!r}, which is not admitted"
            )
        if slot >= len(self._column_at):
            grown = np.zeros(2 * slot + 64, dtype=np.int64)
            grown[: len(self._column_at)] = self._column_at
            self._column_at = grown
        self._settle()
        self._column_at[slot] = column
        self._slot_of[column] = slot
        return column

    def next_indices(self, batch: Batch) -> Ints:
        """Which token of its request each row samples, int64 [rows], -1 for a mid-chunk row."""
        if batch.slots is self._steady_slots:
            self._steady_rounds += 1
            return self._steady_indices + self._steady_rounds
        self._settle()
        for row in range(batch.num_extends):
            self.bind(batch.request_ids[row], int(batch.slots[row]))
        self._bind_host_rows(batch)
        columns = self._columns_of(batch)
        indices: Ints = self._counts[columns]
        self._counts[columns] += 1
        for row in range(batch.num_extends):
            if batch.is_mid_chunk(row):
                self._counts[columns[row]] -= 1
                indices[row] = -1
        if not batch.num_extends:
            self._steady_slots, self._steady_columns = batch.slots, columns
            self._steady_indices = indices.copy()
        return indices

    def _settle(self) -> None:
        """Leave the run of rounds over the same slots: its counts were not kept a round."""
        self._counts[self._steady_columns] += self._steady_rounds
        self._steady_slots, self._steady_rounds = None, 0

    def _columns_of(self, batch: Batch) -> Ints:
        columns = self._column_at[batch.slots]
        if len(columns) and columns.min() == 0:
            row = int(columns.argmin())
            raise AssertionError(
                f"row {row} names {batch.request_ids[row]!r} in slot {batch.slots[row]}, which "
                "belongs to no admitted request"
            )
        return columns

    def _bind_host_rows(self, batch: Batch) -> None:
        for at, token in enumerate(batch.decode_input_ids):
            if token < 0:
                continue
            row = batch.num_extends + at
            column = self.bind(batch.request_ids[row], int(batch.slots[row]))
            if self._counts[column] == 0:
                self._counts[column] = 1  # its first token was sampled elsewhere

    def _grow(self, capacity: int) -> None:
        old = len(self._counts)
        self._counts = np.resize(self._counts, capacity)
        self._slot_of = np.resize(self._slot_of, capacity)
        self._free.extend(reversed(range(old, capacity)))
