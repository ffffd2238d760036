# SPDX-License-Identifier: MIT
"""The time between tokens, kept for groups of rows, is that of each row by itself."""

from __future__ import annotations

import random

import pytest
from attrs import define, evolve, field

from tokenspeed_core.testing.batches import DecodeRow, ExtendRow, batch_of
from tokenspeed_hookspecs import Batch, CommittedForward, ForwardResult
from tokenspeed_metrics.series import Histogram
from tokenspeed_metrics.token_gaps import TokenGaps

BOUNDS = tuple(range(1, 200))


@define
class RowByRow:
    """The same, the slow way: when each row made its last token."""

    seen: list[float] = field(factory=list)
    _last: dict[int, float] = field(factory=dict)
    _gone: set[int] = field(factory=set)

    def take(self, forward: CommittedForward, now: float) -> None:
        batch, lengths = forward.batch, forward.result.lengths
        for row, incarnation in enumerate(batch.incarnations):
            count = 1 if lengths is None else lengths[row]
            if batch.is_mid_chunk(row) or not count or incarnation in self._gone:
                continue
            if incarnation in self._last:
                self.seen += [(now - self._last[incarnation]) / count] * count
            self._last[incarnation] = now
        rows = zip(batch.request_ids, batch.incarnations, strict=True)
        self._gone.update(number for name, number in rows if name in forward.ended)


def forwards(rng: random.Random) -> list[CommittedForward]:
    """Requests that begin with chunks, decode together, pause, speculate and end; behind an end
    come the rows that ran ahead of it."""
    found, running, number = [], list[int](), 0
    for _ in range(60):
        begin: list[tuple[int, bool]] = []
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            number += 1
            begin.append((number, rng.random() < 0.3))
        decoding = [each for each in running if rng.random() < rng.choice([1, 1, 1, 0.6])]
        if not begin and not decoding:
            continue
        batch = _batch(begin, decoding)
        rows = len(batch.request_ids)
        lengths = [rng.choice([0, 1, 1, 3]) for _ in range(rows)] if rng.random() < 0.2 else None
        running += [each for each, is_chunk in begin if not is_chunk]
        ended = [each for each in running if rng.random() < 0.05]
        result = ForwardResult([7] * rows, lengths)
        found.append(CommittedForward(batch, result, [f"r{each}" for each in ended], 0))
        if ended:
            found += [CommittedForward(batch, result, [], 0)] * rng.choice([1, 2])
        running = [each for each in running if each not in ended]
    return found


def _batch(begin: list[tuple[int, bool]], decoding: list[int]) -> Batch:
    extends = [
        ExtendRow(f"r{each}", [1, 2, 3, 4], [1], length=2 if is_chunk else None)
        for each, is_chunk in begin
    ]
    batch = batch_of(extends, [DecodeRow(f"r{each}", [1]) for each in decoding])
    return evolve(batch, incarnations=[each for each, _ in begin] + decoding)


@pytest.mark.parametrize("seed", range(40))
def test_groups_of_rows_count_as_the_rows_do(seed: int) -> None:
    """Whatever the rows do, and however often somebody reads."""
    rng = random.Random(seed)
    histogram = Histogram(lambda value: None, BOUNDS)
    gaps, rows, now = TokenGaps(histogram), RowByRow(), 0.0
    for forward in forwards(rng):
        now += rng.choice([1, 2, 3, 60])
        gaps.take(evolve(forward, committed_at=now))
        rows.take(forward, now)
        if rng.random() < 0.2:
            gaps.settle()
    gaps.settle()
    expected = Histogram(lambda value: None, BOUNDS)
    for value in rows.seen:
        expected.observe(value)
    assert histogram.counts == expected.counts
    assert histogram.total == pytest.approx(expected.total)
