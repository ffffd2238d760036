# SPDX-License-Identifier: MIT
"""The registered requests, and the columns that the commit of a forward reads for all its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenspeed_core.requests.state import RequestState
from tokenspeed_hookspecs import FinishKind, FinishReason

MARKER_LIFETIME_S = 300.0
REMEMBERED_ENDS = 4096
CLIENT_ABORT = "AbortReq from client"
UNKNOWN_ERROR = 522

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def abort_reason(
    message: str, status_code: int | None = None, *, error_type: int = UNKNOWN_ERROR
) -> FinishReason:
    """The finish reason of an abort."""
    return FinishReason(
        FinishKind.ABORT, message=message, status_code=status_code, error_type=error_type
    )


class RequestTable:
    """Registered requests by id, in order of registration, and their columns.

    `version` changes whenever a request comes, goes or is marked, so that what was gathered for a
    batch can be reused while nothing did. `attention[c]` is the number of outputs at which the row
    needs a look of its own: its budget, its next delivery, or 0 once it is marked. `now` is the
    time all replica members agree on in this round, in seconds.
    """

    def __init__(self, capacity: int = 64) -> None:
        self.now = 0.0
        self._by_id: dict[str, RequestState] = {}
        self._markers: dict[str, float] = {}
        self._ended: dict[str, None] = {}
        self._free: list[int] = []
        self.version = 0
        self.num_silent = 0
        self.num_scored = 0
        self.num_outputs: Ints = np.zeros(0, dtype=np.int64)
        self.attention: Ints = np.zeros(0, dtype=np.int64)
        self.stops_on_eos: Bools = np.zeros(0, dtype=bool)
        self._grow(capacity)

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, request_id: str) -> RequestState | None:
        """The live request with this id."""
        return self._by_id.get(request_id)

    def ids(self) -> Sequence[str]:
        """Registered ids in order of registration."""
        return list(self._by_id)

    def rows(self, request_ids: Sequence[str]) -> list[RequestState | None]:
        """The live request of each row of a batch; None for one that has ended."""
        return [self._by_id.get(request_id) for request_id in request_ids]

    def register(self, state: RequestState) -> None:
        """Add a request; an abort that came before it marks it at once."""
        if not self._free:
            self._grow(2 * len(self.num_outputs))
        state.column = self._free.pop()
        self._by_id[state.request_id] = state
        self._ended.pop(state.request_id, None)
        self.version += 1
        self.num_outputs[state.column] = 0
        self.stops_on_eos[state.column] = state.stops_on_eos
        self.num_silent += state.interval != 1
        self.num_scored += state.logprobs is not None
        self.refresh(state)
        if self._markers.pop(state.request_id, None) is not None:
            self.mark_abort(state.request_id, CLIENT_ABORT, notify=False)

    def refresh(self, state: RequestState) -> None:
        """Set the column that says when the row next needs a look, from the state."""
        if state.is_finished or not state.is_plain:
            due = 0
        elif state.interval == 1:
            due = state.budget
        else:
            due = min(state.budget, next_delivery(state))
        self.attention[state.column] = due

    def remove(self, state: RequestState) -> None:
        """Forget a request that ended; its column may be taken again."""
        del self._by_id[state.request_id]
        self._ended[state.request_id] = None
        if len(self._ended) > REMEMBERED_ENDS:
            del self._ended[next(iter(self._ended))]
        state.is_live = False
        self._free.append(state.column)
        self.version += 1
        self.num_silent -= state.interval != 1
        self.num_scored -= state.logprobs is not None

    def mark_abort(self, request_id: str, message: str, *, notify: bool) -> RequestState | None:
        """Mark a request aborted; an unknown id is remembered until it is registered.

        A request that finished for another reason keeps it. An abort that crosses the end of its
        request is forgotten: it may not reach a later request of the same id.
        """
        state = self._by_id.get(request_id)
        if state is None and request_id in self._ended:
            return None
        if state is None:
            self.mark_coming(request_id)
            return None
        if state.finish_reason is None or state.is_aborted:
            state.end_without_token(abort_reason(message))
            state.is_aborted = True
            state.notify = notify
            self.attention[state.column] = 0
            self.version += 1
        return state

    def mark_coming(self, request_id: str) -> None:
        """Remember an abort until its request is registered."""
        self._markers.pop(request_id, None)
        self._markers[request_id] = self.now
        self.sweep_markers()

    def drop_marker(self, request_id: str) -> None:
        """Forget an early abort of a request that was refused."""
        self._markers.pop(request_id, None)

    def sweep_markers(self) -> None:
        """Drop early aborts whose request never came, oldest first."""
        if not self._markers:
            return
        oldest_allowed = self.now - MARKER_LIFETIME_S
        for request_id, marked_at in list(self._markers.items()):
            if marked_at >= oldest_allowed:
                break
            del self._markers[request_id]

    def _grow(self, capacity: int) -> None:
        old = len(self.num_outputs)
        self.num_outputs = np.resize(self.num_outputs, capacity)
        self.attention = np.resize(self.attention, capacity)
        self.stops_on_eos = np.resize(self.stops_on_eos, capacity)
        self._free.extend(reversed(range(old, capacity)))
        self.version += 1


def next_delivery(state: RequestState) -> int:
    """The next output count at which a chunk is due: 1, then one past each multiple."""
    count = len(state.output_ids)
    if count < 1:
        return 1
    return (count - 1) // state.interval * state.interval + 1 + state.interval
