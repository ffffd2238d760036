# SPDX-License-Identifier: MIT
"""The one argument of every round hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field

from tokenspeed_hookspecs.data_plane import Dispatch, ForwardResult, ForwardTable
from tokenspeed_hookspecs.outputs import Load
from tokenspeed_hookspecs.requests import AddRequest, ControlRequest, FinishedRequest
from tokenspeed_hookspecs.scheduler import Batch, Plan


@define(eq=False)
class CommittedForward:
    """A forward whose result was taken into the request states, at `committed_at` seconds of the
    engine clock; `ended` ids left the table."""

    batch: Batch
    result: ForwardResult
    ended: Sequence[str]
    round_number: int
    committed_at: float = 0.0


@define(eq=False)
class Round:
    """One scheduling round, filled in as its phases run.

    A hook reads the fields of its own and earlier phases. Only these are for writing: `dispatch`
    inputs, through `dispatch.inputs`; `commit_first`, in the dispatch hook, asks that pending
    forwards commit before this batch is dispatched.
    """

    number: int
    now: float = 0.0  # the first member's clock, in seconds: the same on every member
    frozen: bool = False
    reports: Mapping[str, Sequence[bytes]] = field(factory=dict)
    candidate: AddRequest | None = None  # validate_request
    aborted: Sequence[str] = ()  # request_aborted
    operation: ControlRequest | None = None  # refuse_weights, weights_loaded
    cache_cleared: bool = False  # in this round's gate, on every rank
    plan: Plan | None = None
    batch: Batch | None = None
    dispatch: Dispatch | None = None
    commit_first: bool = False
    in_flight: int = 0  # forwards dispatched and not yet committed
    table: ForwardTable | None = None  # what all ranks forward, with data parallelism
    forward: CommittedForward | None = None  # committed, forward_done
    forwards: tuple[CommittedForward, ...] = ()  # round_done: all that were committed
    scheduler_events: Sequence[object] = ()
    finished: FinishedRequest | None = None  # request_finished
    load: Load | None = None  # round_done, when outputs were sent
    num_outputs: int = 0
