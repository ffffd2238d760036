# SPDX-License-Identifier: MIT
"""What the wheel is told about each row of a forward, and what it must never be told.

Each row gets its result, and behind it what follows: a decode row that goes on reserves for as many
tokens as it made, a row that ended brings its end. Refused here, before anything is queued, is what
the wheel answers with an exception half way through, or by killing the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from tokenspeed_core.errors import EngineError
from tokenspeed_core.scheduling.flight import Forward
from tokenspeed_hookspecs import CommitOutcome


def refuse_wrong(forward: Forward, outcome: CommitOutcome) -> None:
    """EngineError where the outcome does not fit the forward's rows."""
    expected = len(forward.rows.request_ids)
    if len(outcome.tokens) != expected:
        raise EngineError(
            f"expected one token per row of a batch of {expected}, got {len(outcome.tokens)}"
        )
    for row in (*forward.mid_chunk, *forward.late):
        if outcome.tokens[row] >= 0 or row in outcome.more:
            raise _wrong_row(forward, row, got="a token")
    if outcome.finished or outcome.aborted:
        _refuse_wrong_ends(forward, outcome)


def _refuse_wrong_ends(forward: Forward, outcome: CommitOutcome) -> None:
    ends = [*outcome.finished, *outcome.aborted]
    if len(set(ends)) != len(ends):
        raise EngineError(f"expected each row to end once, got finished and aborted rows {ends}")
    for row in ends:
        if row in forward.late:
            raise _wrong_row(forward, row, got="an end")
    for row in outcome.finished:
        if row in forward.mid_chunk:
            raise _wrong_row(forward, row, got="a finish (only an abort can end it here)")


def _wrong_row(forward: Forward, row: int, *, got: str) -> EngineError:
    what = "its request ended before" if row in forward.late else "it is a chunk inside its prompt"
    return EngineError(
        f"expected nothing from row {row} of request {forward.rows.request_ids[row]!r} because "
        f"{what}, got {got}"
    )


def silent_rows(tokens: Sequence[int]) -> list[int]:
    """The rows that made no token."""
    return [row for row, token in enumerate(tokens) if token < 0] if min(tokens) < 0 else []


def answer(
    forward: Forward, outcome: CommitOutcome, *, followers: Mapping[int, Sequence[Any]]
) -> Sequence[Any]:
    """Fill the rows' results; return all events, with `followers` in place of a row's reserve."""
    rows = forward.rows
    # A loop in C over objects kept from round to round: this line and the adding of the events are
    # most of what a steady decode row costs us.
    deque(map(setattr, rows.results, repeat("tokens"), zip(outcome.tokens, strict=True)), maxlen=0)
    for row, several in outcome.more.items():
        rows.results[row].tokens = several
    if not followers:
        return rows.answers
    for row in followers:
        if outcome.tokens[row] < 0 and row not in outcome.more:
            rows.results[row].tokens = ()
    answers = list(rows.answers)
    for row in sorted(followers, reverse=True):  # from the back, so that places stay right
        answers[rows.followers_of(row)] = followers[row]
    return answers
