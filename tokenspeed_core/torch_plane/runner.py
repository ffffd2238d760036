# SPDX-License-Identifier: MIT
"""What the plane's thread does: a plan's cache operations, its forward, and the sampling.

Everything here runs on that one thread, in the order the loop asked for it. The host reads nothing
back from the device; what a forward gives is copied at its end, behind a mark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from tokenspeed_core.errors import EngineError
from tokenspeed_core.torch_plane.batch_inputs import (
    LastTokens,
    build_inputs,
    flat_token_ids,
    scored_positions,
)
from tokenspeed_core.torch_plane.cache_pools import CachePools
from tokenspeed_core.torch_plane.decoder import Decoder
from tokenspeed_core.torch_plane.decoder_part import DecoderPart
from tokenspeed_core.torch_plane.device import Device, Mark, placed
from tokenspeed_core.torch_plane.extensions import Extensions
from tokenspeed_core.torch_plane.logprobs import Scores, score, score_hidden, spread
from tokenspeed_core.torch_plane.profiler import Profiler
from tokenspeed_core.torch_plane.results import Outputs, collect
from tokenspeed_core.torch_plane.sampler import Sampled, Sampler, SamplingRows
from tokenspeed_core.torch_plane.seated import SeatedRequest, Seats
from tokenspeed_hookspecs import (
    AdmittedRequest,
    Batch,
    CacheAcknowledgment,
    CacheOperation,
    Dispatch,
    LogprobPlan,
    Plan,
)

Done = tuple[Mark, list[CacheAcknowledgment]]


@define(eq=False, kw_only=True)
class Runner:
    """The model with all that belongs to its requests. `done` is read by the loop's thread.

    `released` names the memory regions that are gone; no forward may come until all are back.
    """

    device: Device
    decoder: Decoder
    part: DecoderPart
    pools: CachePools
    seats: Seats
    sampler: Sampler
    last: LastTokens
    extensions: Extensions
    profiler: Profiler
    done: deque[Done] = field(factory=deque)
    released: set[str] = field(factory=set)

    @property
    def num_known_requests(self) -> int:
        """Admitted requests that were not released, and texts kept for penalties."""
        return len(self.seats) + len(self.sampler.texts)

    def admit(self, requests: Sequence[AdmittedRequest]) -> None:
        """Learn of requests."""
        for request in requests:
            self.seats.admit(request)
        self.extensions.admitted(requests)

    def release(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        self.extensions.released(request_ids)
        for request_id in request_ids:
            self.seats.release(request_id)
            self.sampler.end(request_id)

    def run(self, plan: Plan, dispatch: Dispatch) -> Outputs | None:
        """Run a plan: saves, copies, zeroing, fills, forward; None if it has no batch."""
        if plan.operations:
            self._run_operations(plan.saves)
        self.pools.prepare(plan)
        if plan.operations:
            self._run_operations(plan.fills)
        if plan.batch is None:
            return None
        if self.released:
            gone = ", ".join(sorted(self.released))
            raise EngineError(f"a forward was asked for while memory is released: {gone}")
        self.profiler.before_forward()
        outputs = self._forward(plan.batch, dispatch)
        self.profiler.after_forward()
        return outputs

    def _run_operations(self, operations: Sequence[CacheOperation]) -> None:
        if not operations:
            return
        acknowledged = [
            CacheAcknowledgment(operation.op_id, operation.kind)
            for operation in operations
            if self.pools.run(operation, self.seats)
        ]
        self.done.append((self.device.mark(), acknowledged))

    def _forward(self, batch: Batch, dispatch: Dispatch) -> Outputs:
        for seated in self.seats.seat(batch):
            self.sampler.begin(seated)
        rows = self._sampling_rows(batch)
        self.extensions.prepare_inputs(batch, dispatch.inputs)
        slots = self._tensor(batch.slots)
        self._take_tokens(batch)
        hidden = self._hidden(batch, rows, slots=slots, logprobs=dispatch.logprobs)
        if not self.part.is_last:
            return self._handed_on(slots)
        return self._sampled(batch, rows, slots=slots, hidden=hidden, plan=dispatch.logprobs)

    def _take_tokens(self, batch: Batch) -> None:
        """What the last stage sampled, for the decode rows this stage feeds."""
        stages = self.part.stages
        if stages is None or self.part.is_last:
            return
        is_prompts = batch.num_extends == len(batch.request_ids)
        for slots, tokens in stages.take_tokens(keep=stages.size if is_prompts else 0):
            self.last.keep(slots, tokens)

    def _handed_on(self, slots: Tensor) -> Outputs:
        """What a stage that does not sample has to show: nothing, once its work is done."""
        if self.part.stages is not None:
            self.part.stages.expect_tokens(slots)
        nothing = Sampled(torch.zeros_like(slots), torch.zeros_like(slots, dtype=torch.bool))
        return collect(self.device, nothing, scores=None, prompt_scores=None)

    def _sampled(
        self,
        batch: Batch,
        rows: SamplingRows,
        *,
        slots: Tensor,
        hidden: Tensor,
        plan: LogprobPlan | None,
    ) -> Outputs:
        logits = self.decoder.logits(hidden[: len(rows.requests)])
        wanted = np.flatnonzero(rows.columns["wants_logprobs"] & rows.samples)
        # A copy of the wanted rows, because extensions may change the logits in place.
        raw = logits[self._tensor(wanted)] if wanted.size else None
        sampled = self._agreed(self.sampler.sample(self.extensions.logits(batch, logits), rows))
        self.extensions.sampled(batch, sampled.tokens)
        self.last.keep(slots, sampled.tokens)
        if self.part.stages is not None:
            self.part.stages.share_tokens(sampled.tokens)
        return collect(
            self.device,
            sampled,
            scores=self._score(raw, sampled.tokens, rows=wanted, plan=plan),
            prompt_scores=self._score_prompt(batch, hidden, plan=plan),
        )

    def _agreed(self, sampled: Sampled) -> Sampled:
        """The first position's tokens on all: a device may not add up alike twice."""
        positions = self.part.positions
        if positions is None:
            return sampled
        packed = torch.stack([sampled.tokens, sampled.is_bad.to(torch.int64)])
        tokens, is_bad = positions.first(packed).unbind(0)
        return Sampled(tokens, is_bad.to(torch.bool))

    def _hidden(
        self, batch: Batch, rows: SamplingRows, *, slots: Tensor, logprobs: LogprobPlan | None
    ) -> Tensor:
        """Last hidden states of each row's last token, then of the scored prompt positions."""
        inputs = build_inputs(
            batch,
            np.ascontiguousarray(rows.columns["length"]),
            group=self.pools.group,
            token_ids=flat_token_ids(batch, slots, last=self.last),
            logprobs=logprobs,
        )
        return self.decoder.hidden(inputs, self.pools.device)

    def _sampling_rows(self, batch: Batch) -> SamplingRows:
        requests = [self.seats.occupants[slot] for slot in batch.slots.tolist()]
        samples = np.ones(len(requests), dtype=bool)
        for row in range(batch.num_extends):
            samples[row] = not batch.is_mid_chunk(row)
        given = np.full(len(requests), -1, dtype=np.int64)
        given[batch.num_extends :] = batch.decode_input_ids
        return SamplingRows(_all_seated(requests), self.seats.columns[batch.slots], samples, given)

    def _score(
        self,
        raw: Tensor | None,
        tokens: Tensor,
        *,
        rows: np.ndarray[tuple[int], np.dtype[np.int64]],
        plan: LogprobPlan | None,
    ) -> Scores | None:
        """The sampled tokens' scores, for the rows that want them."""
        if raw is None:
            return None
        where = self._tensor(rows)
        scores = score(raw, tokens[where], top=0 if plan is None else plan.sampled_top_k)
        return spread(scores, where, num_rows=len(tokens))

    def _score_prompt(
        self, batch: Batch, hidden: Tensor, *, plan: LogprobPlan | None
    ) -> Scores | None:
        scored = hidden[len(batch.request_ids) :]
        if plan is None or not len(scored):
            return None
        following = np.asarray(batch.shifted_input_ids, dtype=np.int64)[scored_positions(plan)]
        return score_hidden(
            scored,
            self._tensor(following),
            head=self.decoder.logits,
            vocab=self.decoder.config.vocab_size,
            top=plan.top_k,
        )

    def _tensor(self, values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
        return placed(values, self.device.torch_device)


def _all_seated(requests: Sequence[SeatedRequest | None]) -> list[SeatedRequest]:
    seated = [request for request in requests if request is not None]
    assert len(seated) == len(requests), "a row's request was seated before its forward"
    return seated
