# SPDX-License-Identifier: MIT
"""The device side: what the loop asks of it, and where a plugin's own part of it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from attrs import define, field, frozen

from tokenspeed_hookspecs.requests import (
    ControlReply,
    ControlRequest,
    FinishReason,
    LogprobOptions,
    SamplingParams,
)
from tokenspeed_hookspecs.scheduler import Batch, CacheAcknowledgment, CacheGroup, Plan

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")


@frozen
class ModelInfo:
    """What the rest of the engine needs to know of the model."""

    name: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str = "float32"
    num_layers: int = 0
    hidden_size: int = 0


@frozen
class AdmittedRequest:
    """A request as the data plane learns it, before its first forward."""

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    logprobs: LogprobOptions | None
    features: Mapping[str, object]


@frozen
class ForwardTable:
    """What each data-parallel rank forwards in a round, in rank order: input tokens, requests, and
    how many of these are prompts. A rank without tokens takes part with an idle forward."""

    tokens: tuple[int, ...]
    requests: tuple[int, ...]
    extends: tuple[int, ...]


@define(eq=False)
class LogprobPlan:
    """The logprobs a forward computes beyond its sampled tokens'.

    Over the extend rows, in row order: `row_starts` (the row's first input in the flat batch, moved
    to its first scored position), `counts` (scored positions), `position_starts` (prompt position
    of the first). Position q predicts prompt token q + 1. `top_k` is the most alternatives wanted
    by a scored position, `sampled_top_k` the most wanted by a sampled token; 0 for none.
    """

    row_starts: list[int]
    counts: list[int]
    position_starts: list[int]
    top_k: int = 0
    sampled_top_k: int = 0


@define(eq=False)
class Dispatch:
    """What a round hands the data plane besides its plan. `inputs` holds, by plugin name, what a
    plugin's `dispatch` hook attached for its extension; `table` is there with data parallelism."""

    logprobs: LogprobPlan | None = None
    table: ForwardTable | None = None
    inputs: dict[str, object] = field(factory=dict)


@define(eq=False)
class Alternatives:
    """Alternatives of n positions, best first: `logprobs` float32 and `token_ids` int64 [n, k]."""

    logprobs: npt.NDArray[np.float32]
    token_ids: npt.NDArray[np.int64]


@define(eq=False)
class ForwardResult:
    """What one forward produced, on the host.

    `tokens` is flat over the rows in batch order, `lengths` the number a row produced (None: one
    each; a mid-chunk row's token means nothing). `logprobs` are the tokens' own, float32, if any
    row asked. `alternatives` has one entry a token. `prompt_logprobs` has exactly the planned
    number of positions. `nan_rows` lists rows with NaN logits or an impossible sample. `endings`
    has the rows whose request an extension ends, see there. `compiles` is how often code was
    compiled since the result before, which took `compile_seconds`.
    """

    tokens: Sequence[int]
    lengths: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    alternatives: Alternatives | None = None
    prompt_logprobs: npt.NDArray[np.float32] | None = None
    prompt_alternatives: Alternatives | None = None
    nan_rows: Sequence[int] = ()
    endings: Mapping[int, FinishReason] = field(factory=dict)
    compiles: int = 0
    compile_seconds: float = 0.0


@frozen
class HostGroup:
    """How the pages of one cache group lie in the host tier.

    A page is `page_bytes` of memory without gaps; `fields` names what is in it, in order, with
    shapes and number formats. Of `shard_count` equal parts of a page's tensors this rank holds part
    `shard`; ranks with the same part hold the same bytes.
    """

    group: str
    page_bytes: int
    fields: tuple[str, ...]
    shard_count: int = 1
    shard: int = 0


class HostPages(Protocol):
    """The memory of the host tier, for those who move its pages elsewhere.

    A page may be read or written, on any thread, only while the scheduler holds it for an operation
    of theirs. The memory lives as long as a view of it.
    """

    @property
    def groups(self) -> Sequence[HostGroup]:
        """The cache groups, in the order of `DataPlane.cache_groups`."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages of each group, page 0 included, which is never used."""
        ...

    @property
    def buffers(self) -> Sequence[memoryview]:
        """The whole allocations, for a transport that registers memory."""
        ...

    def page(self, group: str, page: int) -> memoryview:
        """The bytes of one page, writable. IndexError: no such page; KeyError: no such group."""
        ...

    def identity(self) -> Mapping[str, object]:
        """Everything a page's bytes depend on besides the tokens before its end and the version of
        the weights: the checkpoint by its contents, number formats, layout, ranks. Plain values;
        equal maps mean pages that can be exchanged. May read the whole checkpoint, once."""
        ...


class PendingForward(Protocol):
    """A forward that was dispatched; `DataPlane.complete` resolves it."""


class DataPlaneExtension(Protocol):
    """A plugin's part of the device side. It implements only the stages it needs; those run on
    the data-plane thread, in order with the forwards. `context` is the plane's own record of the
    forward and `stage` arguments are documented by each plane.

    Optional methods, by name: `build_model(model)`, `on_admit(requests)`, `prepare_inputs(batch,
    value)` (value: what the dispatch hook attached), `logits(batch, logits)` -> logits or None,
    `sampled(batch, tokens)`, `endings(batch)`, `on_release(request_ids)`.

    `endings` gives {row: FinishReason} for the requests this forward ends: with the token the row
    sampled, or, for an abort, without it. It is asked once the tokens are on the host, on the
    thread that completes the forward, perhaps while the next forward runs.
    """

    @property
    def name(self) -> str:
        """The plugin's name: the key of its inputs."""
        ...


class DataPlane(Protocol):
    """The device side of one rank, in FIFO order: what is asked before a forward is done before it.

    A failure raises out of the next call; serving cannot go on.
    """

    @property
    def kind(self) -> str:
        """Which driver this is: an extension is written for one kind."""
        ...

    @property
    def model(self) -> ModelInfo:
        """What was loaded."""
        ...

    @property
    def cache_groups(self) -> Sequence[CacheGroup]:
        """The page tables the scheduler keeps for this model."""
        ...

    @property
    def num_host_pages(self) -> int:
        """Pages of the host tier, page 0 included: those configured, or what fits the configured
        bytes; the same on every rank, and known before `start`."""
        ...

    @property
    def host_pages(self) -> HostPages | None:
        """The host tier's memory, from `start` on; None where there is no such tier."""
        ...

    def start(self, extensions: Sequence[DataPlaneExtension]) -> None:
        """Load what serving needs and bind the extensions, in order."""
        ...

    def stop(self) -> None:
        """Free threads, memory and files; calling it again does nothing."""
        ...

    def admit(self, requests: Sequence[AdmittedRequest]) -> None:
        """Learn of requests before their first forward."""
        ...

    def execute(self, plan: Plan, dispatch: Dispatch) -> PendingForward | None:
        """Run a plan without waiting; returns the forward to complete if the plan has a batch."""
        ...

    def idle_forward(self, table: ForwardTable) -> None:
        """Take part in the other ranks' forward without a row of its own, behind what was asked
        before, and without waiting for it."""
        ...

    def complete(self, pending: PendingForward) -> ForwardResult:
        """Wait for a forward's result."""
        ...

    def poll_cache_operations(self) -> Sequence[CacheAcknowledgment]:
        """The operations whose bytes are in place since the last call.

        Never waits for a device; with no forward in flight it may give one a few milliseconds.
        """
        ...

    def release(self, request_ids: Sequence[str]) -> None:
        """Forget requests that ended; each admitted id comes exactly once."""
        ...

    def interrupt(self, reason: str) -> None:
        """Another rank is gone, so a forward that exchanges tensors with it may never end: what
        waits, and every later call, raises. Called on any thread."""
        ...

    @property
    def memory_regions(self) -> Sequence[str]:
        """The regions `release_memory` can free, in the order of a release; none if it cannot."""
        ...

    def release_memory(self, regions: Sequence[str]) -> None:
        """Give the memory of these regions back to the system, behind what was asked before.

        Called when no request runs and nothing pins a page; what they held is lost, unless the
        plane keeps it elsewhere.
        """
        ...

    def resume_memory(self, regions: Sequence[str]) -> None:
        """Take the memory of these regions again, and make it fit to use."""
        ...

    def control(self, request: ControlRequest) -> ControlReply:
        """Carry out an operation only the device side can, and wait for it.

        `update_weights_from_disk`, `update_weights_from_tensor`, `update_weights_from_distributed`,
        `init_weights_update_group`, `destroy_weights_update_group` and `profile`, with the
        arguments of the wire. Behind the forwards dispatched before. What it does not support or
        cannot do is a reply without success that says why; nothing is changed then.

        All but `profile` are made on every rank or on none: this gets them ready, with all that can
        fail, and `settle` follows.
        """
        ...

    def settle(self, name: str, *, agreed: bool) -> None:
        """End what the last `control` got ready: put it in place if every rank could get ready,
        else let go of it, so that all is as before. It follows also where this rank could not."""
        ...

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the data-plane thread, behind what was asked before, and wait."""
        ...


__all__ = [
    "AdmittedRequest",
    "Alternatives",
    "Batch",
    "DataPlane",
    "DataPlaneExtension",
    "Dispatch",
    "ForwardResult",
    "ForwardTable",
    "HostGroup",
    "HostPages",
    "LogprobPlan",
    "ModelInfo",
    "PendingForward",
]
