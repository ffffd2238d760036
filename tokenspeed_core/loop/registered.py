# SPDX-License-Identifier: MIT
"""The registered requests as plugins see them, and the one way an abort takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenspeed_core.loop.admission import Admission
from tokenspeed_core.requests.outbox import Outbox
from tokenspeed_core.requests.state import DEVICE, HOST
from tokenspeed_core.requests.table import CLIENT_ABORT, RequestTable
from tokenspeed_hookspecs import Request, SchedulerDriver


class RegisteredRequests:
    """Read access by id, and `abort`, which reaches a request wherever it is."""

    def __init__(
        self,
        table: RequestTable,
        outbox: Outbox,
        *,
        admission: Admission,
        scheduler: SchedulerDriver,
    ) -> None:
        self._table = table
        self._outbox = outbox
        self._admission = admission
        self._scheduler = scheduler

    def __len__(self) -> int:
        return len(self._table)

    def get(self, request_id: str) -> Request | None:
        """The registered request with this id, or None."""
        return self._table.get(request_id)

    def ids(self) -> Sequence[str]:
        """Registered ids in the order of registration."""
        return self._table.ids()

    @property
    def num_held(self) -> Mapping[str, int]:
        """How many requests each admission stage holds."""
        return self._admission.num_held

    @property
    def num_refused(self) -> int:
        """How many requests were refused since the start."""
        return self._outbox.num_refused

    def note_cached(self, request_id: str, tier: str, *, num_tokens: int) -> None:
        """Count so many more of a request's cached tokens, of the host tier's, for this tier."""
        if num_tokens < 0:
            raise ValueError(f"{request_id}: expected a number of tokens, got {num_tokens}")
        if tier in (DEVICE, HOST):
            raise ValueError(f"{request_id}: tier {tier!r} is counted by the core itself")
        state = self._table.get(request_id)
        if state is not None:
            state.noted_tokens[tier] = state.noted_tokens.get(tier, 0) + num_tokens

    def abort(self, request_id: str, message: str, *, notify: bool = True) -> None:
        """End a request now if no forward of it runs, else at its next commit.

        One that a pause withholds ends when the pause does.
        """
        if self._admission.is_coming(request_id):
            # Not an abort that crosses the end of an earlier request of this id.
            self._table.mark_coming(request_id)
            return
        state = self._table.mark_abort(request_id, message, notify=notify)
        if state is None or not state.is_aborted or self._admission.withholds(request_id):
            return
        if self._admission.drop(request_id) or self._scheduler.cancel(request_id):
            self._outbox.end(state)

    def abort_by_client(self, request_id: str) -> None:
        """End a request whose client is gone; nothing is sent for it."""
        self.abort(request_id, CLIENT_ABORT, notify=False)
