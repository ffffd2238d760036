# SPDX-License-Identifier: MIT
"""What the wheel is told about each row of a forward, and what it must never be told.

Each row gets its result, and behind it what follows: a decode row that goes on reserves for as many
tokens as it made, a row that ended brings its end. Refused here, before anything is queued, is what
the wheel answers with an exception half way through, or by killing the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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
    if forward.mid_chunk or forward.late:
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


def fill_results(forward: Forward, outcome: CommitOutcome, *, silent: Sequence[int]) -> None:
    """Write each row's tokens into its result event, none into those of the `silent` rows."""
    results = forward.rows.results
    # A loop in C over objects kept from round to round, which leaves no time to ask questions.
    deque(map(setattr, results, repeat("tokens"), zip(outcome.tokens, strict=True)), maxlen=0)
    for row in silent:
        results[row].tokens = ()
    for row, several in outcome.more.items():
        results[row].tokens = several


def with_followers(forward: Forward, followers: Mapping[int, Sequence[Any]]) -> Iterator[Any]:
    """Yield each row's result and what follows it: `followers`, else a decode row's reserve."""
    for row, request in enumerate(forward.rows.requests):
        yield request.result
        if row in followers:
            yield from followers[row]
        elif row >= forward.rows.num_extends:
            yield request.reserve
