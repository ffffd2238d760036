# SPDX-License-Identifier: MIT
"""A data plane without a device, whose tokens tell what happened.

A request's k-th token is 1000 + k, so an output says exactly which tokens its request was given; a
mid-prompt chunk samples 0. The logprob of token t is -t / 1000, that of the prompt token after
position p is -(p + 1) / 10; alternatives are the token itself, then ids 901, 902, ... each lower by
one. A forward is done `forward_ms` after the one before it; a cache operation is acknowledged by
the first poll after it ran.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from attrs import define

from tokenspeed_core.config import EngineConfig
from tokenspeed_core.config.tables import from_table
from tokenspeed_core.testing.checked_pages import CheckedPages
from tokenspeed_core.testing.given_tokens import FIRST_TOKEN, GivenTokens
from tokenspeed_core.testing.scripted_host import HostPart, ScriptedHostPages
from tokenspeed_core.testing.scripted_operations import ScriptedOperations
from tokenspeed_core.testing.scripted_options import Faults, RowFault, ScriptedOptions
from tokenspeed_core.testing.scripted_scores import alternatives, prompt_scores
from tokenspeed_hookspecs import (
    AdmittedRequest,
    Batch,
    CacheAcknowledgment,
    CacheGroup,
    CacheOperation,
    CacheOperationKind,
    ControlReply,
    ControlRequest,
    DataPlaneExtension,
    Dispatch,
    ForwardResult,
    ForwardTable,
    ModelInfo,
    PendingForward,
    Plan,
)

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
MID_CHUNK_TOKEN = 0


@define(eq=False)
class ScriptedForward:
    """A forward whose result is known and not due yet."""

    result: ForwardResult
    batch: Batch
    due_at: float


class ScriptedDataPlane:
    """See the module; `released` holds (id, tokens given) in order, `operations` counts by kind,
    `asked` has what the device was asked besides; `compiled` holds the seconds of each compilation
    that the next forward reports."""

    kind = "scripted"

    def __init__(
        self, config: EngineConfig, options: Mapping[str, Any], *, seat: object = None
    ) -> None:
        self.options = from_table(ScriptedOptions, options, place="data_plane")
        limit = config.engine.max_model_len or self.options.max_model_len
        self.model = ModelInfo(
            "scripted", self.options.vocab_size, limit, self.options.eos_token_ids
        )
        self.cache_groups: Sequence[CacheGroup] = self.options.groups(config.scheduler.page_size)
        self.num_host_pages = config.scheduler.host_pages
        part = HostPart(self.options.shard_count, self.options.shard, self.options.stage)
        self.host_pages: ScriptedHostPages | None = None
        if self.num_host_pages:
            self.host_pages = ScriptedHostPages(self.cache_groups, self.num_host_pages, part=part)
        self.faults = Faults()
        self.released: list[tuple[str, int]] = []
        self.operations: Counter[CacheOperationKind] = Counter()
        self.asked = ScriptedOperations()
        self.num_forwards = 0
        self.num_idle_forwards = 0
        self.batches: deque[Batch] = deque(maxlen=self.options.recorded_batches)
        self.pages: CheckedPages | None = None
        if self.options.checked_pages:
            self.pages = CheckedPages(self.cache_groups, self.host_pages, salt=part.salt)
        self.compiled: list[float] = []
        self._given = GivenTokens()
        self._prompts: dict[str, AdmittedRequest] = {}
        self._num_scored = 0
        self._unacknowledged: list[CacheAcknowledgment] = []
        self._extensions: Sequence[DataPlaneExtension] = ()
        self._free_at = 0.0

    @property
    def num_admitted(self) -> int:
        """Requests admitted and not released."""
        return len(self._given)

    def start(self, extensions: Sequence[DataPlaneExtension]) -> None:
        """Take the extensions; there is nothing else to start."""
        self._extensions = extensions

    def stop(self) -> None:
        """Nothing is held."""

    @property
    def memory_regions(self) -> Sequence[str]:
        """The two regions of every scripted device."""
        return self.asked.regions

    def release_memory(self, regions: Sequence[str]) -> None:
        """Record the release."""
        self.asked.release(regions)

    def resume_memory(self, regions: Sequence[str]) -> None:
        """Record the resume."""
        self.asked.resume(regions)

    def control(self, request: ControlRequest) -> ControlReply:
        """Answer as scripted."""
        return self.asked.control(request)

    def settle(self, name: str, *, agreed: bool) -> None:
        """Record whether the operation was made."""
        self.asked.settle(name, agreed=agreed)

    def interrupt(self, reason: str) -> None:
        """Nothing here waits for another rank."""

    def call(self, function: Callable[[], T]) -> T:
        """Run the function at once: everything asked before it is done."""
        return function()

    def admit(self, requests: Sequence[AdmittedRequest]) -> None:
        """Begin to count. AssertionError for an id that is admitted already."""
        for request in requests:
            self._given.admit(request.request_id)
            self._prompts[request.request_id] = request
            self._num_scored += request.logprobs is not None
            if self.pages is not None:
                self.pages.texts.admit(request.request_id, request.prompt_ids)
        self._tell("on_admit", requests)

    def release(self, request_ids: Sequence[str]) -> None:
        """Report what each was given. AssertionError for a second release, or an unknown id."""
        for request_id in request_ids:
            given = self._given.release(request_id)
            samples = self.options.placeholder is None
            self.released.append((request_id, given if samples else 0))
            self._num_scored -= self._prompts.pop(request_id).logprobs is not None
            if self.pages is not None:
                del self.pages.texts[request_id]
        self._tell("on_release", request_ids)

    def poll_cache_operations(self) -> Sequence[CacheAcknowledgment]:
        """What ran since the last poll."""
        done, self._unacknowledged = self._unacknowledged, []
        return done

    def execute(self, plan: Plan, dispatch: Dispatch) -> PendingForward | None:
        """Run a plan in the contract's order: saves, copies, zeroing, fills, the forward."""
        if plan.operations:
            self._run(plan.saves)
        if self.pages is not None:
            self.pages.prepare(plan.copy, plan.zero)
        if plan.operations:
            self._run(plan.fills)
        if plan.batch is None:
            return None
        start = max(time.monotonic(), self._free_at) if self.options.forward_ms else 0.0
        self._free_at = start + self.options.forward_ms / 1000
        return ScriptedForward(self._forward(plan.batch, dispatch), plan.batch, self._free_at)

    def idle_forward(self, table: ForwardTable) -> None:
        """Count it; AssertionError if nobody forwards, or memory is released."""
        assert any(table.tokens), "an idle forward without another rank's"
        self.asked.check_memory()
        self.num_idle_forwards += 1

    def complete(self, pending: PendingForward) -> ForwardResult:
        """Wait until the forward is due."""
        assert isinstance(pending, ScriptedForward), f"not a forward of this plane: {pending!r}"
        if pending.due_at:
            time.sleep(max(0.0, pending.due_at - time.monotonic()))
        for extension in self._extensions:
            if hasattr(extension, "endings"):
                pending.result.endings = {
                    **extension.endings(pending.batch),
                    **pending.result.endings,
                }
        return pending.result

    def _run(self, operations: Sequence[CacheOperation]) -> None:
        for operation in operations:
            self.operations[operation.kind] += 1
            if self.pages is not None:
                self.pages.run(operation)
            if operation.kind is CacheOperationKind.RESTORE and operation.request_id is not None:
                self._given.bind(operation.request_id, operation.slot)
            if operation.kind is not CacheOperationKind.OTHER:
                self._unacknowledged.append(CacheAcknowledgment(operation.op_id, operation.kind))

    def _forward(self, batch: Batch, dispatch: Dispatch) -> ForwardResult:
        self.asked.check_memory()
        self.num_forwards += 1
        if self.batches.maxlen:
            self.batches.append(batch)
        for extension in self._extensions:
            if extension.name in dispatch.inputs and hasattr(extension, "prepare_inputs"):
                extension.prepare_inputs(batch, dispatch.inputs[extension.name])
        if self.pages is not None:
            self.pages.forward(batch)
        indices = self._given.next_indices(batch)
        tokens = indices + FIRST_TOKEN
        if batch.num_extends:
            tokens[indices < 0] = MID_CHUNK_TOKEN
        faults = self._faults(batch, indices) if self.faults else {}
        for row, fault in faults.items():
            if fault.token is not None:
                tokens[row] = fault.token
        if self._extensions:
            self._tell("sampled", batch, tokens)
        if self.pages is not None:
            self.pages.sampled(batch, tokens)
        return self._result(batch, dispatch, tokens=tokens, faults=faults)

    def _faults(self, batch: Batch, indices: Ints) -> dict[int, RowFault]:
        found = {}
        for row, request_id in enumerate(batch.request_ids):
            if indices[row] < 0:
                fault = self.faults.of_chunk(request_id, batch.extend_prefix_lens[row])
            else:
                fault = self.faults.of_token(request_id, int(indices[row]))
            if fault is not None:
                found[row] = fault
        return found

    def _result(
        self, batch: Batch, dispatch: Dispatch, *, tokens: Ints, faults: Mapping[int, RowFault]
    ) -> ForwardResult:
        if self.options.placeholder is not None:
            return ForwardResult([self.options.placeholder] * len(tokens))
        # The contract's sequence of ints; an array saves the loop a conversion each way.
        result = ForwardResult(cast("Sequence[int]", tokens))
        if self.compiled:
            result.compiles, result.compile_seconds = len(self.compiled), sum(self.compiled)
            self.compiled.clear()
        if faults:
            result.nan_rows = [row for row, fault in faults.items() if fault.is_nan]
        if not self._num_scored:
            return result
        logprobs = tokens / -1000
        for row, fault in faults.items():
            if fault.logprob is not None:
                logprobs[row] = fault.logprob
        result.logprobs = logprobs.tolist()
        plan = dispatch.logprobs
        if plan is not None and plan.sampled_top_k:
            result.alternatives = alternatives(logprobs, tokens, count=plan.sampled_top_k)
        if plan is not None and any(plan.counts):
            prompts = [self._prompts[name].prompt_ids for name in batch.request_ids]
            scores, tops = prompt_scores(plan, prompts)
            result.prompt_logprobs, result.prompt_alternatives = scores, tops
        return result

    def _tell(self, method: str, *arguments: object) -> None:
        """Call an optional method of each extension that has it."""
        for extension in self._extensions:
            called = getattr(extension, method, None)
            if called is not None:
                called(*arguments)
