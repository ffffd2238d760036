# SPDX-License-Identifier: MIT
"""The commit of a forward: its answers, queued for the wheel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define

from tokenspeed_core.scheduling.answers import (
    fill_results,
    refuse_wrong,
    silent_rows,
    with_followers,
)
from tokenspeed_core.scheduling.backlog import Backlog
from tokenspeed_core.scheduling.endings import Endings
from tokenspeed_core.scheduling.flight import Flight, Forward, Rows
from tokenspeed_core.scheduling.native_events import EventQueue, NativeEvents
from tokenspeed_hookspecs import Batch, CommitOutcome


@define(eq=False, kw_only=True)
class Answering:
    """Answers forwards, oldest first."""

    flight: Flight
    endings: Endings
    backlog: Backlog
    events: NativeEvents
    queue: EventQueue

    def commit(self, batch: Batch, outcome: CommitOutcome) -> None:
        """Queue one answer per row; EngineError, and nothing queued, where one cannot be right."""
        forward = self.flight.oldest(batch)
        refuse_wrong(forward, outcome)
        self.flight.pop()
        if forward.late:
            self.backlog.note_change()  # the last late row gives back slot and pages
        silent = silent_rows(outcome.tokens)
        fill_results(forward, outcome, silent=silent)
        # Nothing to look at in most rounds, so this is asked before any row is.
        if silent or outcome.more or outcome.finished or outcome.aborted or outcome.suspect:
            followers = self._followers(forward, outcome, silent=silent)
            self.queue.add(with_followers(forward, followers))
            return
        self.queue.add(forward.rows.results)
        self.queue.add_bundle(self._reserves(forward.rows))

    def _reserves(self, rows: Rows) -> Any:
        # These say the same every round, so they are bundled once for as long as the rows stay.
        if rows.reserves is None:
            decoding = rows.requests[rows.num_extends :]
            rows.reserves = self.queue.bundle(request.reserve for request in decoding)
        return rows.reserves

    def _followers(
        self, forward: Forward, outcome: CommitOutcome, *, silent: Sequence[int]
    ) -> dict[int, list[Any]]:
        """The rows that do not simply go on, and what follows their results."""
        requests, events = forward.rows.requests, self.events
        followers: dict[int, list[Any]] = {row: [] for row in silent}
        for row, several in outcome.more.items():
            reserve = events.reserve(requests[row].request_id, len(several))
            followers[row] = [reserve] if row >= forward.rows.num_extends else []
        for row in outcome.finished:
            self.endings.end(requests[row])
            followers[row] = [events.finish(requests[row].request_id)]
        for row in outcome.suspect:
            self.endings.suspect(requests[row])
        for row in outcome.aborted:
            self.endings.end_held(requests[row])
        if self.endings.num_held:
            followers.update(self.endings.release_aborts(forward))
        return followers
