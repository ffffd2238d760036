# SPDX-License-Identifier: MIT
"""What a round sends: chunks to clients, ended ids to the data plane, ends to observers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from attrs import evolve

from tokenspeed_core.requests.state import DEVICE, RequestState
from tokenspeed_core.requests.table import RequestTable, abort_reason
from tokenspeed_hookspecs import (
    ChunkDetails,
    FinishedRequest,
    FinishReason,
    OutputBatch,
    TokenAlternatives,
)


class Outbox:
    """Collects one round's results; every registered request leaves through `end`, once."""

    def __init__(self, table: RequestTable, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        self.outputs = OutputBatch()
        self.released: list[str] = []
        self.weight_version: str | None = None  # of the forward that is being committed
        self.finished: list[FinishedRequest] = []
        self.num_refused = 0
        self.num_finished = 0
        self.num_tokens = 0
        self.prefilled = Counter[str]()  # prompt tokens of requests that were prefilled, by origin

    def start_over(self) -> None:
        """Start with empty lists; what was in them is handed on, and not ours any more."""
        if self.outputs.request_ids:
            self.num_tokens += len(self.outputs.token_ids)
            self.outputs = OutputBatch()
        if self.released:
            self.num_finished += len(self.finished)
            self.released = []
            self.finished = []

    def chunk(self, state: RequestState) -> None:
        """Add a chunk with every token since the request's last one."""
        outputs, new = self.outputs, state.output_ids[state.sent :]
        details = self._details(state)
        if details is not None:
            outputs.details[len(outputs.request_ids)] = details
        outputs.request_ids.append(state.request_id)
        outputs.token_ids.extend(new)
        outputs.counts.append(len(new))
        outputs.prompt_tokens.append(state.prompt_len)
        outputs.completion_tokens.append(len(state.output_ids))
        outputs.cached_tokens.append(state.cached_tokens)
        state.sent = len(state.output_ids)

    def end(self, state: RequestState) -> None:
        """Send a finished request's last chunk, unless its client is gone, and forget it."""
        if self.weight_version is not None and state.output_ids and state.finish_reason is not None:
            version = self.weight_version
            state.finish_reason = evolve(state.finish_reason, weight_version=version)
        if state.notify:
            self.chunk(state)
        self._table.remove(state)
        self.released.append(state.request_id)
        finished = self._finished(state)
        self.finished.append(finished)
        if finished.prefilled_at is not None:
            self._count(finished)

    def _count(self, finished: FinishedRequest) -> None:
        self.prefilled["prompt_tokens"] += finished.prompt_tokens
        self.prefilled["cached_tokens"] += finished.cached_tokens
        for tier, tokens in (finished.cached_by_tier or {DEVICE: finished.cached_tokens}).items():
            self.prefilled[f"cached_tokens_{tier}"] += tokens

    def fail(self, state: RequestState, reason: FinishReason) -> None:
        """End a request with an abort; one that ended otherwise meanwhile keeps its reason."""
        if state.finish_reason is None:
            state.end_without_token(reason)
        self.end(state)

    def refuse(self, request_id: str, message: str, *, status_code: int | None) -> None:
        """Answer a request that was never registered; its early abort, if any, is forgotten."""
        self._table.drop_marker(request_id)
        self.num_refused += 1
        outputs = self.outputs
        reason = abort_reason(message, status_code)
        outputs.details[len(outputs.request_ids)] = ChunkDetails(finish=reason)
        outputs.request_ids.append(request_id)
        for column in (
            outputs.counts,
            outputs.prompt_tokens,
            outputs.completion_tokens,
            outputs.cached_tokens,
        ):
            column.append(0)

    def _details(self, state: RequestState) -> ChunkDetails | None:
        tiers = None
        if state.loaded_tokens and (not state.sent or state.is_finished):
            tiers = state.cached_by_tier or None
        if state.logprobs is None:
            finish = state.finish_reason
            if finish is None and tiers is None:
                return None
            return ChunkDetails(finish=finish, cached_by_tier=tiers)
        logprobs, state.output_logprobs = state.output_logprobs, []
        alternatives: list[TokenAlternatives] | None = None
        if state.logprobs.top:
            alternatives, state.output_alternatives = state.output_alternatives, []
        prompt = state.scores.take() if state.scores is not None else None
        return ChunkDetails(state.finish_reason, logprobs, alternatives, prompt, tiers)

    def _finished(self, state: RequestState) -> FinishedRequest:
        assert state.finish_reason is not None, f"{state.request_id} left without a reason"
        times = state.times
        return FinishedRequest(
            state.request_id,
            state.finish_reason,
            prompt_tokens=state.prompt_len,
            cached_tokens=state.cached_tokens,
            output_tokens=len(state.output_ids),
            received_at=times.received,
            submitted_at=times.submitted,
            scheduled_at=times.scheduled,
            prefilled_at=times.prefilled,
            first_token_at=times.first_token,
            finished_at=self._clock(),
            preempted_s=times.preempted_s,
            preemptions=times.preemptions,
            cached_by_tier=state.cached_by_tier,
            max_new_tokens=state.budget,
        )
