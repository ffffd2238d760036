# SPDX-License-Identifier: MIT
"""The time between one token of a request and its next, for all rows of a forward at once.

Rows that decode together keep doing so: nearly always every row's last token came with the same
forward, and one comparison finds it out. So rows are kept in groups, by the time of their last
token, and never looked at one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from tokenspeed_hookspecs import CommittedForward
from tokenspeed_metrics.series import Histogram

MOST_AHEAD = 8  # forwards that may be in flight when a request ends
MOST_WAITING = 1 << 14  # forwards; with nobody who reads, the oldest go
MOST_GROUPS = 256  # what is left of requests that ended while no forward of theirs ran is dropped

RowsByTokens = Mapping[int, Sequence[int]]  # incarnations, by how many tokens each row made
Commit = tuple[float, RowsByTokens, Sequence[int]]  # when, and which requests are gone since


class TokenGaps:
    """Feeds a histogram; rows are told apart by their incarnations, which are never used again."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._waiting: deque[Commit] = deque(maxlen=MOST_WAITING)
        self._last_rows: Sequence[int] = []
        self._last_at = 0.0
        self._groups: dict[float, set[int]] = {}
        self._late: dict[int, int] = {}

    def take(self, forward: CommittedForward) -> None:
        """Leave the rows of a committed forward for later; a gap with several new tokens counts as
        so many equal ones."""
        batch, now = forward.batch, forward.committed_at
        if batch.num_extends or forward.ended or forward.result.lengths is not None:
            self._waiting.append((now, _rows_by_tokens(forward), _gone(forward)))
        else:
            self._waiting.append((now, {1: batch.incarnations}, ()))

    def settle(self) -> None:
        """Observe what was left."""
        for _ in range(len(self._waiting)):
            now, by_count, gone = self._waiting.popleft()
            if self._is_as_before(by_count):
                self._histogram.observe(now - self._last_at, len(self._last_rows))
                self._groups[now] = self._groups.pop(self._last_at)
            else:
                if self._late:
                    by_count = self._without_late(by_count)
                self._regroup(by_count, now)
                self._last_rows = by_count.get(1, []) if len(by_count) == 1 else []
            self._last_at = now
            self._late.update(dict.fromkeys(gone, MOST_AHEAD))
            for group in self._groups.values() if gone else ():
                group.difference_update(gone)

    def _is_as_before(self, by_count: RowsByTokens) -> bool:
        """Whether the rows of the last forward made one more token each, and no other row any."""
        rows, last = by_count.get(1), self._last_rows
        return (
            # Mostly it is the very same list, which need not be walked through.
            (rows is last or rows == last)
            and len(by_count) == 1
            and not self._late
            and self._last_at in self._groups
        )

    def _regroup(self, by_count: RowsByTokens, now: float) -> None:
        newest: set[int] = set()
        for count, rows in by_count.items():
            self._observe(set(rows), now, count=count)
            newest.update(rows)
        self._groups[now] = newest
        if len(self._groups) > MOST_GROUPS:
            del self._groups[next(iter(self._groups))]

    def _observe(self, rows: set[int], now: float, *, count: int) -> None:
        """Observe what each of these rows waited for; a first token waited for none."""
        for at, group in list(self._groups.items()):
            common = group & rows
            if common:
                self._histogram.observe((now - at) / count, count * len(common))
                group.difference_update(common)
            if not group:
                del self._groups[at]

    def _without_late(self, by_count: RowsByTokens) -> RowsByTokens:
        """The rows but those of requests that had ended: a forward ahead may still have run them,
        and what they made is nobody's."""
        late = set(self._late)
        self._late = {row: left - 1 for row, left in self._late.items() if left}
        return {count: [row for row in rows if row not in late] for count, rows in by_count.items()}


def _gone(forward: CommittedForward) -> Sequence[int]:
    """The incarnations of the rows whose requests ended."""
    ended = set(forward.ended)
    rows = zip(forward.batch.request_ids, forward.batch.incarnations, strict=True)
    return [incarnation for request_id, incarnation in rows if request_id in ended]


def _rows_by_tokens(forward: CommittedForward) -> RowsByTokens:
    """The incarnations of the rows that made a token, by how many they made."""
    batch, lengths = forward.batch, forward.result.lengths
    rows = batch.incarnations
    if batch.num_extends:
        extends = range(batch.num_extends)
        whole = [rows[row] for row in extends if not batch.is_mid_chunk(row)]
        rows = whole + rows[batch.num_extends :]
    if lengths is None:
        return {1: rows}
    made: dict[int, list[int]] = {}
    for row, count in enumerate(lengths):
        if count and not batch.is_mid_chunk(row):
            made.setdefault(count, []).append(batch.incarnations[row])
    return made
