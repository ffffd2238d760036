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
from attrs import define

from tokenspeed_core.errors import EngineError
from tokenspeed_core.requests.finish import FinishRules
from tokenspeed_core.requests.flight import InFlight
from tokenspeed_core.requests.logprob_values import finite
from tokenspeed_core.requests.outbox import Outbox
from tokenspeed_core.requests.row_tokens import RowTokens
from tokenspeed_core.requests.state import RequestState
from tokenspeed_core.requests.table import RequestTable, abort_reason
from tokenspeed_hookspecs import Alternatives, CommitOutcome, FinishKind, ForwardResult

NUMERICAL_ERROR = 523
NAN_TEXT = (
    "Request terminated: numerical corruption (NaN logits or out-of-vocab sample) detected during "
    "generation."
)


@define(eq=False)
class Committer:
    """Commits forwards, oldest first, into one rank's table and outbox."""

    table: RequestTable
    outbox: Outbox
    rules: FinishRules
    clock: Callable[[], float]
    committed_at: float = 0.0

    def commit(self, flight: InFlight, result: ForwardResult) -> CommitOutcome:
        """Commit one forward; returns what the scheduler needs of each row."""
        outcome = _Commit(self, flight, result=result).run()
        self.committed_at = self.clock()
        return outcome


class _Commit:
    """One forward on its way through."""

    def __init__(self, owner: Committer, flight: InFlight, *, result: ForwardResult) -> None:
        self.table = owner.table
        self.outbox = owner.outbox
        self.rules = owner.rules
        self.clock = owner.clock
        self.previous_at = owner.committed_at
        self.flight = flight
        self.batch = flight.batch
        self.rows = flight.rows
        self.first = flight.batch.num_extends
        self.result = result
        self.tokens = RowTokens(flight, result)
        self.nan_rows = frozenset(result.nan_rows)

    def run(self) -> CommitOutcome:
        if self.flight.logprobs is not None:
            self._place_prompt_scores()
        if 0 < self.first < len(self.rows.states):
            self._note_preemptions()
        for row in range(self.first):
            self._commit_extend(row)
        for row in self._commit_plain():
            self._commit_row(row)
        return self.tokens.outcome

    def _note_preemptions(self) -> None:
        """The decode rows had to wait for the prompts beside them.

        The step began with the dispatch, or, where it was queued, when the one before it was done.
        """
        seconds = self.clock() - max(self.flight.dispatched_at, self.previous_at)
        for state in self.rows.states[self.first :]:
            if state is not None:
                state.times.note_preemption(self.flight.number, seconds)

    # --- all at once -----------------------------------------------------------------------------

    def _commit_plain(self) -> list[int]:
        """Take the decode rows that need no look of their own; return the other decode rows."""
        rows, table, first = self.rows, self.table, self.first
        if not rows.appends or self.result.lengths is not None:
            return list(range(first, len(rows.states)))
        counts = table.num_outputs.take(rows.columns)
        counts += 1
        plain = counts < table.attention.take(rows.columns)
        if self.rules.has_eos:
            ends = self.rules.hits_eos(self.tokens.array[first:])
            plain &= ~(ends & table.stops_on_eos.take(rows.columns))
        if table.version != rows.version:
            # Something came or went since the dispatch: a column may be another request's by now.
            plain &= np.array([s is not None and s.is_live for s in rows.states[first:]])
        for row in self.nan_rows:
            if row >= first:
                plain[row - first] = False
        for row in self.result.endings:
            if row >= first:
                plain[row - first] = False
        if not table.num_silent and np.count_nonzero(plain) == len(plain):
            table.num_outputs[rows.columns] = counts
            self._take_all(counts)
            return []
        chosen = np.flatnonzero(plain)
        table.num_outputs[rows.columns[chosen]] = counts[chosen]
        self._take_some(chosen.tolist())
        return [first + int(at) for at in np.flatnonzero(~plain)]

    def _take_all(self, counts: npt.NDArray[np.int64]) -> None:
        rows, outputs, first = self.rows, self.outbox.outputs, self.first
        taken = self.tokens.flat[first:] if first else self.tokens.flat
        for append, token in zip(rows.appends, taken, strict=True):
            append(token)
        outputs.request_ids += rows.request_ids[first:] if first else rows.request_ids
        outputs.token_ids += taken
        outputs.counts += rows.ones
        outputs.prompt_tokens += rows.prompt_tokens
        outputs.completion_tokens += counts.tolist()
        outputs.cached_tokens += rows.cached_tokens

    def _take_some(self, chosen: list[int]) -> None:
        for at in chosen:
            row = self.first + at
            state = self.rows.states[row]
            assert state is not None, "a plain row has a request"
            if state.interval != 1:
                state.output_ids.append(self.tokens.flat[row])
                continue
            state.sent = len(state.output_ids)
            state.output_ids.append(self.tokens.flat[row])
            self.outbox.chunk(state)

    # --- one by one ------------------------------------------------------------------------------

    def _commit_extend(self, row: int) -> None:
        state, batch = self.rows.states[row], self.batch
        if state is None or not state.is_live:
            self.tokens.drop(row)
            return
        prefix = batch.extend_prefix_lens[row]
        hit = prefix + batch.extend_replay_lens[row] - _computed_length(state)
        if hit > 0:
            state.cached_tokens += hit
            self.table.version += 1  # usage that was gathered for a batch is out of date
        state.computed_length = prefix + batch.input_lengths[row]
        if batch.is_mid_chunk(row):
            if row in self.nan_rows:
                state.has_nan_chunk = True
                self.tokens.suspect.append(row)
            self.tokens.drop(row)
            return
        if state.times.prefilled is None:
            state.times.prefilled = self.clock()
        self._commit_row(row)

    def _commit_row(self, row: int) -> None:
        state = self.rows.states[row]
        if state is None or not state.is_live:
            self.tokens.drop(row)
            return
        is_numerical = row in self.nan_rows or state.has_nan_chunk
        if is_numerical and not state.is_finished:
            state.end_without_token(abort_reason(NAN_TEXT, error_type=NUMERICAL_ERROR))
        ending = self.result.endings.get(row)
        if ending is not None and ending.kind is FinishKind.ABORT and not state.is_finished:
            state.end_without_token(ending)
        if is_numerical:
            self.tokens.drop(row)
        elif state.is_finished:
            # Nobody is sent a token drawn after an abort. The scheduler still needs one: it counts
            # pages by tokens, and a prompt that ended without any breaks its books a row later.
            start, stop = self.tokens.span(row)
            self.tokens.keep(row, min(start + 1, stop))
        else:
            self._take_tokens(row, state)
            state.finish_reason = state.finish_reason or ending
        if not state.is_finished:
            self._deliver(state)
            return
        ends = self.tokens.aborted if is_numerical else self.tokens.finished
        ends.append(row)
        self.outbox.end(state)

    def _take_tokens(self, row: int, state: RequestState) -> None:
        """Append the row's tokens one by one, up to the one that ends the request."""
        if state.times.first_token is None:
            state.times.first_token = self.clock()
        if state.scores is not None and row < self.first:
            state.scores.finalise(state.request_id)
        if state.interval == 1 and state.is_plain:
            state.sent = len(state.output_ids)
        start, stop = self.tokens.span(row)
        for at in range(start, stop):
            state.output_ids.append(int(self.tokens.array[at]))
            if state.logprobs is not None:
                self._record_logprob(state, at)
            state.finish_reason = self.rules.after_token(state)
            if state.finish_reason is not None:
                stop = at + 1
                break
        self.tokens.keep(row, stop)
        self.table.num_outputs[state.column] = len(state.output_ids)

    def _record_logprob(self, state: RequestState, at: int) -> None:
        assert state.logprobs is not None
        if self.result.logprobs is None:
            raise EngineError(
                f"request {state.request_id!r} asked for logprobs and the forward reported none; "
                "the data plane did not learn of the wish on admission"
            )
        state.output_logprobs += finite(np.asarray(self.result.logprobs[at : at + 1])).tolist()
        top, found = state.logprobs.top, self.result.alternatives
        if top and found is not None:
            state.output_alternatives.append(
                (finite(found.logprobs[at, :top]).tolist(), found.token_ids[at, :top].tolist())
            )

    def _deliver(self, state: RequestState) -> None:
        if state.interval == 1 or _is_due(state):
            self.outbox.chunk(state)
        self.table.refresh(state)

    def _place_prompt_scores(self) -> None:
        plan, found = self.flight.logprobs, self.result.prompt_logprobs
        assert plan is not None
        planned = sum(plan.counts)
        reported = 0 if found is None else len(found)
        if reported != planned:
            raise EngineError(
                f"forward {self.flight.number} was to score {planned} prompt positions and "
                f"reported {reported}; the data plane broke the logprob plan"
            )
        at = 0
        for row, count in enumerate(plan.counts):
            state = self.rows.states[row]
            if found is not None and count and state is not None and state.scores is not None:
                alternatives = _slice(self.result.prompt_alternatives, at, stop=at + count)
                state.scores.place(
                    plan.position_starts[row], found[at : at + count], alternatives=alternatives
                )
            at += count


def _computed_length(state: RequestState) -> int:
    """Positions whose cache the request has computed or continued from its own tokens."""
    outputs = len(state.output_ids)
    return max(state.computed_length, state.prompt_len + outputs - 1 if outputs else 0)


def _is_due(state: RequestState) -> bool:
    """Whether the output count reached the delivery after the last one, also when it jumped."""
    if state.sent == 0:
        return bool(state.output_ids)
    return (state.sent - 1) // state.interval < (len(state.output_ids) - 1) // state.interval


def _slice(found: Alternatives | None, start: int, *, stop: int) -> Alternatives | None:
    if found is None:
        return None
    return Alternatives(found.logprobs[start:stop], found.token_ids[start:stop])
