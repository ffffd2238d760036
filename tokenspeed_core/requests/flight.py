# SPDX-License-Identifier: MIT
"""A dispatched forward, with what its commit will need, gathered before any commit of its round.

A commit may end requests that a later batch still names, and then the table no longer has them; so
the states are held here, and a row whose state is no longer live when the forward commits is late.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from attrs import define, field

from tokenspeed_core.errors import EngineError
from tokenspeed_core.requests.state import RequestState
from tokenspeed_core.requests.table import RequestTable
from tokenspeed_hookspecs import Batch, LogprobPlan, PendingForward


@define(eq=False)
class Rows:
    """The requests of a batch and, for its decode rows, what the commit reads of all at once.

    Valid for every batch with the same ids while `version` is the table's.
    """

    version: int
    request_ids: list[str]
    num_extends: int
    states: list[RequestState | None]
    columns: npt.NDArray[np.int64]
    appends: list[Callable[[int], None]] = field(factory=list)
    prompt_tokens: list[int] = field(factory=list)
    cached_tokens: list[int] = field(factory=list)
    ones: list[int] = field(factory=list)


@define(eq=False)
class InFlight:
    """One forward that was dispatched and not yet committed."""

    batch: Batch
    rows: Rows
    pending: PendingForward
    logprobs: LogprobPlan | None
    number: int
    dispatched_at: float
    weight_version: str | None = None


class RowGatherer:
    """Finds the requests of each batch; a steady batch costs one comparison of its ids."""

    def __init__(self, table: RequestTable) -> None:
        self._table = table
        self._last: Rows | None = None

    def gather(self, batch: Batch) -> Rows:
        """The requests of a batch about to be dispatched; all must be registered."""
        last, table = self._last, self._table
        if (
            last is not None
            and last.version == table.version
            and last.num_extends == batch.num_extends
            and last.request_ids == batch.request_ids
        ):
            return last
        states = table.rows(batch.request_ids)
        decoding = [
            self._known(batch, row, state=states[row])
            for row in range(batch.num_extends, len(states))
        ]
        self._last = Rows(
            version=table.version,
            request_ids=batch.request_ids,
            num_extends=batch.num_extends,
            states=states,
            columns=np.array([state.column for state in decoding], dtype=np.int64),
            appends=[state.output_ids.append for state in decoding],
            prompt_tokens=[state.prompt_len for state in decoding],
            cached_tokens=[state.cached_tokens for state in decoding],
            ones=[1] * len(decoding),
        )
        return self._last

    def _known(self, batch: Batch, row: int, *, state: RequestState | None) -> RequestState:
        if state is None:
            raise EngineError(
                f"the plan's row {row} names {batch.request_ids[row]!r}, which is not registered; "
                "a request ended without the scheduler being told"
            )
        return state


def plan_logprobs(batch: Batch, rows: Rows) -> LogprobPlan | None:
    """The prompt positions to score and the most alternatives wanted; None if no row wants any."""
    plan = LogprobPlan([], [], [])
    offset = scored = 0
    for row in range(batch.num_extends):
        prefix, length = batch.extend_prefix_lens[row], batch.input_lengths[row]
        state = rows.states[row]
        scores = state.scores if state is not None else None
        first, last = (prefix, prefix) if scores is None else scores.span(prefix, length)
        count = last - first
        plan.row_starts.append(offset + (first - prefix if count else 0))
        plan.counts.append(count)
        plan.position_starts.append(first if count else prefix)
        if scores is not None and count:
            plan.top_k = max(plan.top_k, scores.top)
        scored += count
        offset += length
    wanted = [s.logprobs.top for s in rows.states if s is not None and s.logprobs is not None]
    plan.sampled_top_k = max(wanted, default=0)
    return plan if scored or plan.sampled_top_k else None
