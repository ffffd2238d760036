# SPDX-License-Identifier: MIT
"""The way of a request into the wheel: checked, queued, handed over in its turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import define

from tokenspeed_core.scheduling.backlog import Backlog, Handover
from tokenspeed_core.scheduling.native_events import NativeEvents
from tokenspeed_core.scheduling.population import Population, Price, Stage, Tracked
from tokenspeed_core.scheduling.prefixes import RunningPrefixes
from tokenspeed_core.scheduling.submissions import SubmissionRules
from tokenspeed_hookspecs import RequestSpec

OUTPUT_RESERVE = 4096  # an admission claims pages for at most so many tokens of the budget


@define(eq=False, kw_only=True)
class Entrance:
    """Takes submissions; `capacity` is the wheel's capacity model, `num_slots` its batch size.

    Without `prefixes` every page of a prompt is taken for new.
    """

    rules: SubmissionRules
    backlog: Backlog
    population: Population
    events: NativeEvents
    capacity: Any
    num_slots: int
    prefixes: RunningPrefixes | None
    _num_submitted: int = 0

    def submit(self, specs: Sequence[RequestSpec]) -> None:
        """Queue new requests, all or none; ValueError where the wheel would refuse one."""
        self.rules.refuse_wrong(specs, self.population)
        natives = [self.events.spec(spec) for spec in specs]
        for spec, native in zip(specs, natives, strict=True):
            self._num_submitted += 1
            request = Tracked(
                request_id=spec.request_id,
                incarnation=self._num_submitted,
                prompt_ids=spec.prompt_ids,
                pages=self._claimed_pages(spec),
                native_spec=native,
            )
            if spec.max_cached_prefix is not None:
                request.max_shared = spec.max_cached_prefix
            self.population.add(request)
            self.backlog.push(request)

    def _claimed_pages(self, spec: RequestSpec) -> int:
        most = len(spec.prompt_ids) + OUTPUT_RESERVE
        return self._pages_of(min(self.rules.claimed_tokens(spec), most))

    def _pages_of(self, num_tokens: int) -> int:
        per_group = self.capacity.single_request_group_pages(num_tokens)
        return int(self.capacity.lcm_blocks_needed_for(per_group))

    def _price(self, request: Tracked) -> Price:
        shared = self.prefixes.shared_tokens(request) if self.prefixes is not None else 0
        if not shared:
            return Price(request.num_prompt, request.pages)
        return Price(request.num_prompt - shared, request.pages - self._pages_of(shared))

    def withdraw(self, request: Tracked) -> None:
        """Drop a request that still waits in the backlog; the wheel never knew it."""
        self.backlog.remove(request)
        self.population.forget(request)

    def begin(self, request: Tracked, stage: Stage) -> None:
        """A plan runs the request in that stage; an ended one stays ended."""
        if request.stage is stage or request.stage is Stage.ENDED:
            return
        if request.stage is Stage.WAITING:
            self.backlog.left_waiting(request)
        self.population.move(request, stage)
        if self.prefixes is not None and stage is Stage.DECODING:
            self.prefixes.add(request)
            self.backlog.note_change()

    def leave(self, request: Tracked, stage: Stage) -> None:
        """The request ended or was retracted: others no longer share its pages for nothing."""
        if request.stage is Stage.WAITING:
            self.backlog.left_waiting(request)
        if self.prefixes is not None:
            self.prefixes.discard(request)
        self.population.move(request, stage)
        self.backlog.note_change()

    def hand_over(self, scheduler: Any, *, num_answering: int) -> Iterator[Any]:
        """Yield the native specs to submit now.

        `num_answering` requests ended and hold their slot until their last row is answered.
        """
        count = self.population.count
        inside = num_answering + count(Stage.WAITING) + count(Stage.PREFILLING)
        inside += count(Stage.DECODING) + count(Stage.RETRACTED)
        limits = Handover(
            free_slots=self.num_slots - inside,
            obtainable_pages=scheduler.available_lcm_blocks,
            must_take_head=inside == 0,
            price=self._price,
        )
        for request in self.backlog.take(limits):
            yield request.native_spec
            request.native_spec = None
            request.result = self.events.result(request.request_id)
            request.reserve = self.events.reserve(request.request_id, 1)
            self.population.move(request, Stage.WAITING)
