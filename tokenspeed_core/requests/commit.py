# SPDX-License-Identifier: MIT
"""Take one forward's result into the request states, the scheduler's answers and the outputs.

Decode rows whose token ends nothing and needs no look of its own are taken all at once, from the
table's columns. The rest, few in any round, go one by one: prompt chunks, rows at their end, rows
with logprobs or stop strings, rows of aborted requests. A row whose request left the table while
its forward ran is late: it is answered empty and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tokenspeed_core.errors import EngineError
from tokenspeed_core.requests.finish import FinishRules
from tokenspeed_core.requests.flight import InFlight
from tokenspeed_core.requests.outbox import Outbox
from tokenspeed_core.requests.state import RequestState
from tokenspeed_core.requests.table import RequestTable, abort_reason
from tokenspeed_hookspecs import Alternatives, CommitOutcome, ForwardResult

NUMERICAL_ERROR = 523
NAN_TEXT = (
    "Request terminated: numerical corruption (NaN logits or out-of-vocab sample) detected during "
    "generation."
)


class Committer:
    """Commits forwards, oldest first; `commit` returns what the scheduler needs of each row."""

    def __init__(
        self,
        table: RequestTable,
        outbox: Outbox,
        *,
        rules: FinishRules,
        clock: Callable[[], float],
    ) -> None:
        self._table = table
        self._outbox = outbox
        self._rules = rules
        self._clock = clock

    def commit(self, flight: InFlight, result: ForwardResult) -> CommitOutcome:
        """Commit one forward; rows of `outcome.finished` and `.aborted` left the table."""
        tokens = np.asarray(result.tokens, dtype=np.int64)
        spans = _RowTokens(flight, result, tokens)
        outcome = CommitOutcome(spans.flat, spans.more, spans.finished, spans.aborted)
        if flight.logprobs is not None:
            self._place_prompt_scores(flight, result)
        nan_rows = frozenset(result.nan_rows)
        for row in range(flight.batch.num_extends):
            self._commit_extend(_Row(flight, row, row in nan_rows), spans)
        for row in self._commit_plain(flight, result, tokens, outcome):
            self._commit_row(_Row(flight, row, row in nan_rows), spans)
        return outcome

    def _commit_plain(
        self,
        flight: InFlight,
        result: ForwardResult,
        tokens: npt.NDArray[np.int64],
        outcome: CommitOutcome,
    ) -> list[int]:
        """Take the decode rows that need no look of their own; return the other decode rows."""
        rows, table = flight.rows, self._table
        first = flight.batch.num_extends
        if not rows.appends or result.lengths is not None:
            return list(range(first, len(rows.states)))
        counts = table.num_outputs.take(rows.columns)
        counts += 1
        plain = counts < table.attention.take(rows.columns)
        if self._rules.has_eos:
            ends = self._rules.hits_eos(tokens[first:])
            plain &= ~(ends & table.stops_on_eos.take(rows.columns))
        if table.version != rows.version:
            # Something came or went since the dispatch: a column may be another request's by now.
            plain &= np.array([s is not None and s.is_live for s in rows.states[first:]])
        for row in result.nan_rows:
            if row >= first:
                plain[row - first] = False
        if plain.all() and not table.num_silent:
            table.num_outputs[rows.columns] = counts
            self._take_all(flight, counts, outcome)
            return []
        chosen = np.flatnonzero(plain)
        table.num_outputs[rows.columns[chosen]] = counts[chosen]
        self._take_some(flight, chosen.tolist(), outcome)
        return [first + int(at) for at in np.flatnonzero(~plain)]

    def _take_all(
        self, flight: InFlight, counts: npt.NDArray[np.int64], outcome: CommitOutcome
    ) -> None:
        rows, outputs, first = flight.rows, self._outbox.outputs, flight.batch.num_extends
        taken = outcome.tokens[first:] if first else outcome.tokens
        for append, token in zip(rows.appends, taken, strict=True):
            append(token)
        outputs.request_ids += rows.request_ids[first:] if first else rows.request_ids
        outputs.token_ids += taken
        outputs.counts += rows.ones
        outputs.prompt_tokens += rows.prompt_tokens
        outputs.completion_tokens += counts.tolist()
        outputs.cached_tokens += rows.cached_tokens

    def _take_some(self, flight: InFlight, chosen: list[int], outcome: CommitOutcome) -> None:
        first, chunk = flight.batch.num_extends, self._outbox.chunk
        for at in chosen:
            state = flight.rows.states[first + at]
            assert state is not None, "a plain row has a request"
            state.sent = len(state.output_ids) if state.interval == 1 else state.sent
            state.output_ids.append(outcome.tokens[first + at])
            if state.interval == 1:
                chunk(state)

    def _commit_extend(self, row: _Row, spans: _RowTokens) -> None:
        state, batch, index = row.state, row.flight.batch, row.index
        if state is None or not state.is_live:
            spans.drop(index)
            return
        prefix = batch.extend_prefix_lens[index]
        hit = prefix + batch.extend_replay_lens[index] - _computed_length(state)
        if hit > 0:
            state.cached_tokens += hit
            self._table.version += 1  # gathered usage columns are out of date
        state.computed_length = prefix + batch.input_lengths[index]
        if batch.is_mid_chunk(index):
            state.has_nan_chunk |= row.has_nan
            spans.drop(index)
            return
        if state.times.prefilled is None:
            state.times.prefilled = self._clock()
        if state.scores is not None and not state.is_finished and not row.has_nan:
            state.scores.finalise(state.request_id)
        self._commit_row(row, spans)

    def _commit_row(self, row: _Row, spans: _RowTokens) -> None:
        state, index = row.state, row.index
        if state is None or not state.is_live:
            spans.drop(index)
            return
        is_numerical = row.has_nan or state.has_nan_chunk
        if is_numerical and not state.is_finished:
            state.finish_reason = abort_reason(NAN_TEXT, error_type=NUMERICAL_ERROR)
        if state.is_finished:
            # A token drawn from NaN logits, or after an abort, is nobody's: it is not delivered.
            spans.drop(index)
        else:
            self._take_tokens(row, state, spans)
        if state.is_finished:
            (spans.aborted if is_numerical else spans.finished).append(index)
            self._outbox.end(state)
            return
        self._deliver(state)

    def _take_tokens(self, row: _Row, state: RequestState, spans: _RowTokens) -> None:
        """Append the row's tokens one by one, up to the one that ends the request."""
        if state.times.first_token is None:
            state.times.first_token = self._clock()
        if state.interval == 1 and state.is_plain:
            state.sent = len(state.output_ids)
        start, stop = spans.span(row.index)
        for at in range(start, stop):
            state.output_ids.append(spans.token(at))
            if state.logprobs is not None:
                self._record_logprob(state, spans.result, at)
            state.finish_reason = self._rules.after_token(state)
            if state.finish_reason is not None:
                stop = at + 1
                break
        spans.keep(row.index, stop)
        self._table.num_outputs[state.column] = len(state.output_ids)

    def _record_logprob(self, state: RequestState, result: ForwardResult, at: int) -> None:
        assert state.logprobs is not None
        if result.logprobs is None:
            raise EngineError(
                f"request {state.request_id!r} asked for logprobs and the forward reported none; "
                "the data plane did not learn of the wish on admission"
            )
        state.output_logprobs.append(float(result.logprobs[at]))
        top, found = state.logprobs.top, result.alternatives
        if top and found is not None:
            state.output_alternatives.append(
                (found.logprobs[at, :top].tolist(), found.token_ids[at, :top].tolist())
            )

    def _deliver(self, state: RequestState) -> None:
        count = len(state.output_ids)
        if state.interval == 1 or (count and _is_due(state)):
            self._outbox.chunk(state)
        self._table.refresh(state)

    def _place_prompt_scores(self, flight: InFlight, result: ForwardResult) -> None:
        plan = flight.logprobs
        assert plan is not None
        planned = sum(plan.counts)
        found = 0 if result.prompt_logprobs is None else len(result.prompt_logprobs)
        if found != planned:
            raise EngineError(
                f"forward {flight.number} was to score {planned} prompt positions and reported "
                f"{found}; the data plane broke the logprob plan"
            )
        at = 0
        for row, count in enumerate(plan.counts):
            state = flight.rows.states[row]
            if count and state is not None and state.scores is not None:
                assert result.prompt_logprobs is not None
                state.scores.place(
                    plan.position_starts[row],
                    result.prompt_logprobs[at : at + count],
                    _slice(result.prompt_alternatives, at, at + count),
                )
            at += count


class _Row:
    """One row of a forward on its way through the commit."""

    __slots__ = ("flight", "has_nan", "index", "state")

    def __init__(self, flight: InFlight, index: int, has_nan: bool) -> None:
        self.flight = flight
        self.index = index
        self.has_nan = has_nan
        self.state = flight.rows.states[index]


class _RowTokens:
    """Each row's tokens, and which of them the scheduler is told of.

    `flat[row]` is the row's one kept token or -1; `more` has the rows that keep several. `finished`
    and `aborted` rows left the table in this commit.
    """

    def __init__(
        self, flight: InFlight, result: ForwardResult, tokens: npt.NDArray[np.int64]
    ) -> None:
        self.result = result
        self._tokens = tokens
        count = len(flight.batch.request_ids)
        self._starts: list[int] | None = None
        if result.lengths is not None:
            self._starts = [0, *np.cumsum(result.lengths).tolist()]
        expected = count if self._starts is None else self._starts[-1]
        if len(tokens) != expected:
            raise EngineError(
                f"forward {flight.number} has {count} rows and should report {expected} tokens, "
                f"got {len(tokens)}; the data plane lost or added rows"
            )
        self.flat: list[int] = tokens.tolist() if self._starts is None else [-1] * count
        self.more: dict[int, list[int]] = {}
        self.finished: list[int] = []
        self.aborted: list[int] = []

    def span(self, row: int) -> tuple[int, int]:
        """Where the row's tokens are in the flat list."""
        if self._starts is None:
            return row, row + 1
        return self._starts[row], self._starts[row + 1]

    def token(self, at: int) -> int:
        """The flat token at a place."""
        return int(self._tokens[at])

    def drop(self, row: int) -> None:
        """Keep none of the row's tokens."""
        self.flat[row] = -1

    def keep(self, row: int, stop: int) -> None:
        """Keep the row's tokens before `stop`; the rest came after the request's end."""
        if self._starts is not None and stop > self._starts[row]:
            kept = self._tokens[self._starts[row] : stop].tolist()
            self.flat[row] = kept[0]
            if len(kept) > 1:
                self.more[row] = kept


def _computed_length(state: RequestState) -> int:
    """Positions whose cache the request has computed or continued from its own tokens."""
    outputs = len(state.output_ids)
    return max(state.computed_length, state.prompt_len + outputs - 1 if outputs else 0)


def _is_due(state: RequestState) -> bool:
    """Whether the output count reached the delivery after the last one, also when it jumped."""
    if state.sent == 0:
        return True
    return (state.sent - 1) // state.interval < (len(state.output_ids) - 1) // state.interval


def _slice(found: Alternatives | None, start: int, stop: int) -> Alternatives | None:
    if found is None:
        return None
    return Alternatives(found.logprobs[start:stop], found.token_ids[start:stop])
