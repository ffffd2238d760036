# SPDX-License-Identifier: MIT
"""A small loop over the driver: what the engine's loop asks of it, and nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import define, field

from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_hookspecs import (
    Batch,
    CacheAcknowledgment,
    CommitOutcome,
    Plan,
    RequestSpec,
    SchedulerSettings,
)

PAGE = 16
Settings = Callable[..., SchedulerSettings]


@define(eq=False)
class Wanted:
    """A request of the loop: how many tokens it gets, what it got, and how it stands."""

    budget: int
    is_aborted: bool = False
    is_over: bool = False
    tokens: list[int] = field(factory=list)


@define(eq=False)
class Rounds:
    """Runs rounds at a depth; cache operations are in place `ack_after` rounds later."""

    driver: NativeScheduler
    depth: int = 0
    ack_after: int = 1
    number: int = 0
    plans: list[Plan] = field(factory=list)
    wanted: dict[str, Wanted] = field(factory=dict)
    in_flight: deque[tuple[Batch, list[Wanted]]] = field(factory=deque)
    done: deque[tuple[int, CacheAcknowledgment]] = field(factory=deque)

    def submit(
        self,
        request_id: str,
        num_prompt: int = 40,
        *,
        budget: int = 4,
        declared: int | None = None,
        prompt: Sequence[int] = (),
    ) -> Wanted:
        """Submit a request, with a prompt of its own unless one is given."""
        start = 1000 * (len(self.wanted) + 1) + self.number
        prompt = prompt or range(start, start + num_prompt)
        self.driver.submit(
            [RequestSpec(request_id, prompt, budget if declared is None else declared)]
        )
        self.wanted[request_id] = Wanted(budget)
        return self.wanted[request_id]

    def abort(self, request_id: str) -> bool:
        """Cancel now, or at the request's next commit."""
        request = self.wanted[request_id]
        request.is_aborted = True
        request.is_over |= self.driver.cancel(request_id)
        return request.is_over

    def round(self) -> Plan:
        """One round: acknowledge, plan, commit down to the depth, advance."""
        self.number += 1
        due = [done for when, done in self.done if when <= self.number]
        self.done = deque(entry for entry in self.done if entry[0] > self.number)
        self.driver.advance_head(None, due)
        plan = self.driver.plan()
        self.plans.append(plan)
        for abort in plan.aborts:
            self.wanted[abort.request_id].is_over = True
        for operation in plan.operations:
            done = CacheAcknowledgment(operation.op_id, operation.kind)
            self.done.append((self.number + self.ack_after, done))
        if plan.batch is not None:
            batch = plan.batch
            self.in_flight.append((batch, [self.wanted[name] for name in batch.request_ids]))
        self.commit_down_to(self.depth if plan.batch is not None else 0)
        self.driver.advance()
        return plan

    def commit_down_to(self, depth: int) -> None:
        """Commit the oldest forwards."""
        while len(self.in_flight) > depth:
            batch, requests = self.in_flight.popleft()
            self.driver.commit(batch, self._outcome(batch, requests))

    def _outcome(self, batch: Batch, requests: list[Wanted]) -> CommitOutcome:
        tokens, finished, aborted = [], [], []
        for row, request in enumerate(requests):
            token = -1 if request.is_over or batch.is_mid_chunk(row) else self.number
            tokens.append(token)
            if request.is_aborted and not request.is_over:
                aborted.append(row)
                request.is_over = True
            elif token >= 0:
                request.tokens.append(token)
                if len(request.tokens) == request.budget:
                    finished.append(row)
                    request.is_over = True
        return CommitOutcome(tokens, finished=finished, aborted=aborted)

    def drain(self, most: int = 2000) -> int:
        """Run until the driver knows no request and nothing is in flight; the rounds it took."""
        for count in range(most):
            if not (self.driver.has_work or self.in_flight or self.done):
                return count
            self.round()
        raise AssertionError(f"still busy after {most} rounds: {self.driver.sizes}")

    def ran(self, request_id: str) -> int:
        """In how many batches the request had a row."""
        batches = [plan.batch for plan in self.plans if plan.batch is not None]
        return sum(request_id in batch.request_ids for batch in batches)


def small_settings(**changes: Any) -> SchedulerSettings:
    """Pages of 16 tokens, 256 tokens a plan, 8 slots, 512 pages."""
    options = {"page_size": PAGE, "max_scheduled_tokens": 256, "max_batch_size": 8, **changes}
    return SchedulerSettings(**options)


@pytest.fixture
def settings() -> Settings:
    """Makes settings of a small scheduler."""
    return small_settings


@pytest.fixture
def rounds() -> Callable[..., Rounds]:
    """Makes a loop over a small scheduler: `rounds(depth, ack_after=1, **settings)`."""

    def make(depth: int = 0, *, ack_after: int = 1, **changes: Any) -> Rounds:
        return Rounds(NativeScheduler(small_settings(**changes)), depth, ack_after)

    return make
