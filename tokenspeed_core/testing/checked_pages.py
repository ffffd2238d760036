# SPDX-License-Identifier: MIT
"""Page contents without a device: which position of which text each cell of each page holds.

A cell holds a fingerprint of a position *and of every token before it*, as a cached key does. Each
forward first checks that every cached position of each row holds the row's own text, then writes
the positions it feeds. A wrong block table, a missing copy, a page reused too early or a stale
prefix is found at the first forward that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from tokenspeed_core.testing.scripted_host import ScriptedHostPages
from tokenspeed_core.testing.texts import Text, TextBook
from tokenspeed_hookspecs import Batch, CacheGroup, CacheOperation, CacheOperationKind, PageMove

Ints = npt.NDArray[np.int64]
Cells = npt.NDArray[np.uint64]
PagesByGroup = Mapping[str, npt.NDArray[np.int32]]
HOST_TIER, SNAPSHOT_TIER = 0, 1


class _Pool:
    """Pages of one tier and group, made as they are named."""

    def __init__(self, page_size: int, cells: Cells | None = None) -> None:
        self.cells: Cells = np.zeros((64, page_size), dtype=np.uint64) if cells is None else cells

    def covering(self, pages: Ints) -> Cells:
        """The cells, with room for these pages."""
        highest = int(pages.max()) if len(pages) else 0
        if highest >= len(self.cells):
            grown = np.zeros((2 * highest, self.cells.shape[1]), dtype=np.uint64)
            grown[: len(self.cells)] = self.cells
            self.cells = grown
        return self.cells


@frozen
class _Reading:
    """One row's view of one group: it has positions before `start`, and feeds `length` more."""

    group: CacheGroup
    text: Text
    table: npt.NDArray[np.int32]
    start: int
    length: int

    def __str__(self) -> str:
        return (
            f"{self.text.request_id!r}, group {self.group.name}, positions {self.start} to "
            f"{self.end - 1}, block table {self.table.tolist()}"
        )

    @property
    def end(self) -> int:
        """One past the last position fed."""
        return self.start + self.length

    @property
    def first(self) -> int:
        """The first position that is read."""
        window = self.group.sliding_window
        return 0 if window is None else max(0, self.start + 1 - window)

    def place(self) -> tuple[Ints, Ints]:
        """Pages and offsets of the positions read and fed; each must have a page."""
        positions = np.arange(self.first, self.end)
        at = positions // self.group.page_size
        if len(at) and at[-1] >= len(self.table):
            raise AssertionError(f"{self}: the table ends before position {positions[-1]}")
        pages = self.table[at].astype(np.int64)
        if (pages <= 0).any():
            raise AssertionError(f"{self}: no page for position {positions[pages <= 0][0]}")
        return pages, positions % self.group.page_size


class CheckedPages:
    """The pages of every tier, the texts of the admitted requests, and the check.

    The host tier's are those of `host`, where there are some; all cells are mixed with `salt`.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        host: ScriptedHostPages | None = None,
        *,
        salt: int = 0,
    ) -> None:
        self._groups = {group.name: group for group in groups}
        self._device = {group.name: _Pool(group.page_size) for group in groups}
        self._host = {
            group.name: _Pool(group.page_size, None if host is None else host.cells[group.name])
            for group in groups
        }
        self._salt = np.uint64(salt)
        self._images = {group.name: _Pool(group.page_size) for group in groups}
        self.texts = TextBook()
        self.num_checked = 0

    def run(self, operation: CacheOperation) -> None:
        """Move the pages of one cache operation."""
        for move in operation.moves:
            self._move(operation.kind, move)

    def prepare(self, copy: PagesByGroup, zero: PagesByGroup) -> None:
        """Make private copies, all sources read first; then clear fresh pages."""
        for group, pairs in copy.items():
            both = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
            cells = self._device[group].covering(both.reshape(-1))
            cells[both[:, 1]] = cells[both[:, 0]]
        for group, pages in zero.items():
            fresh = np.asarray(pages, dtype=np.int64)
            self._device[group].covering(fresh)[fresh] = 0

    def forward(self, batch: Batch) -> None:
        """Check what each row has cached, then write what it feeds."""
        flat = 0
        for row, request_id in enumerate(batch.request_ids):
            text, length = self.texts[request_id], batch.input_lengths[row]
            if row < batch.num_extends:
                start = batch.extend_prefix_lens[row]
                fed = batch.input_ids[flat : flat + length]
                text.expect(start, fed, what=f"input_ids of row {row}")
                shifted = batch.shifted_input_ids[flat : flat + length]
                text.expect_shifted(start, shifted, what=f"shifted_input_ids of row {row}")
                flat += length
            else:
                start = len(text) - length
                fed = [batch.decode_input_ids[row - batch.num_extends]]
                text.expect(start, fed, what=f"decode_input_ids of row {row}")
            for group, table in batch.block_tables.items():
                reading = _Reading(self._groups[group], text, table[row], start, length)
                self._check_and_write(reading)

    def sampled(self, batch: Batch, tokens: Ints) -> None:
        """Append what each row sampled, int64 [rows], to its request's text."""
        for row, request_id in enumerate(batch.request_ids):
            if not batch.is_mid_chunk(row):
                self.texts[request_id].append(int(tokens[row]))

    def _check_and_write(self, reading: _Reading) -> None:
        pages, offsets = reading.place()
        cells = self._device[reading.group.name].covering(pages)
        expected = reading.text.fingerprints(reading.first, reading.end) ^ self._salt
        num_cached = reading.start - reading.first
        held = cells[pages[:num_cached], offsets[:num_cached]]
        if not np.array_equal(held, expected[:num_cached]):
            wrong = int(np.argmax(held != expected[:num_cached]))
            state = "was never written" if held[wrong] == 0 else "holds another text"
            raise AssertionError(
                f"{reading}: cached position {reading.first + wrong} (page {pages[wrong]}) {state}"
            )
        cells[pages[num_cached:], offsets[num_cached:]] = expected[num_cached:]
        self.num_checked += num_cached

    def _move(self, kind: CacheOperationKind, move: PageMove) -> None:
        sources = np.asarray(move.sources, dtype=np.int64)
        destinations = np.asarray(move.destinations, dtype=np.int64)
        device, host = self._device[move.group], self._host[move.group]
        image = self._images[move.group]
        if kind is CacheOperationKind.RESTORE:
            tiers = np.asarray(move.source_tiers, dtype=np.int64)
            for tier, pool in ((HOST_TIER, host), (SNAPSHOT_TIER, image)):
                chosen = tiers == tier
                _copy((pool, sources[chosen]), (device, destinations[chosen]))
            return
        ways = {
            CacheOperationKind.SNAPSHOT: (device, image),
            CacheOperationKind.WRITE_BACK: (device, host),
            CacheOperationKind.LOAD_BACK: (host, device),
        }
        if kind in ways:
            source, destination = ways[kind]
            _copy((source, sources), (destination, destinations))


def _copy(source: tuple[_Pool, Ints], destination: tuple[_Pool, Ints]) -> None:
    pool, pages = source
    read = pool.covering(pages)[pages]
    pool, pages = destination
    pool.covering(pages)[pages] = read
