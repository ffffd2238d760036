# SPDX-License-Identifier: MIT
"""The scheduler as the loop and plugins see it: plans in, answers out.

A driver (`tokenspeed.schedulers`) wraps one native scheduler. Ids are request ids; a *slot* is the
scheduler's request-pool index, 1 to `max_batch_size`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from attrs import define, field, frozen

from tokenspeed_hookspecs.storage import StorageOperation, StorageSettings, StorageTick

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class CacheOperationKind(Enum):
    """What a cache operation moves. OTHER is a plugin's own kind, opaque to the core."""

    SNAPSHOT = "snapshot"  # device pages and slot state to the snapshot pool (a retraction)
    RESTORE = "restore"  # back to new device pages and a new slot
    WRITE_BACK = "write_back"  # device pages to the host tier
    LOAD_BACK = "load_back"  # host pages to the device
    OTHER = "other"


_SAVES = frozenset({CacheOperationKind.SNAPSHOT, CacheOperationKind.WRITE_BACK})


@frozen
class PageMove:
    """Pages of one cache group, source i to destination i."""

    group: str
    sources: Sequence[int]
    destinations: Sequence[int]
    source_tiers: Sequence[int] = ()


@frozen
class CacheOperation:
    """One operation to run on the device and to acknowledge once by `op_id`.

    `slot` is the request's pool index and `image` its place in the snapshot pool, for SNAPSHOT and
    RESTORE; `native` is the scheduler's own object.
    """

    op_id: int
    kind: CacheOperationKind
    moves: tuple[PageMove, ...] = ()
    request_id: str | None = None
    slot: int = 0
    image: int = 0
    native: object = None


@frozen
class CacheAcknowledgment:
    """A cache operation whose bytes are in place."""

    op_id: int
    kind: CacheOperationKind


@frozen
class CacheCleared:
    """Among the drained events: every cached prefix was forgotten, those of all earlier events."""


@frozen
class SchedulerAbort:
    """A request the scheduler itself dropped; it owes no event."""

    request_id: str
    reason: str
    detail: str


@define(eq=False)
class Batch:
    """The rows of one forward: the first `num_extends` are prompt chunks, the rest decode.

    Per row: `request_ids`, `slots`, `input_lengths` (tokens fed), `block_tables[group]` int32
    `[rows, width]` of page ids, read-only, 0 where a window gave its page up and -1 behind a row's
    last page. Per extend row: `extend_prefix_lens` (positions already cached),
    `extend_replay_lens`, `prefill_lengths` (where the prompt, or after a retraction the recompute,
    ends). `input_ids` and `shifted_input_ids` (the token after each position, -1 past the end) are
    flat over the extend rows. `decode_input_ids` holds -1 where the token is still on the device.
    `incarnations` tells a reused request id apart.
    """

    request_ids: list[str]
    slots: npt.NDArray[np.int64]
    incarnations: list[int]
    input_lengths: list[int]
    num_extends: int
    extend_prefix_lens: list[int]
    extend_replay_lens: list[int]
    prefill_lengths: list[int]
    input_ids: Sequence[int]
    shifted_input_ids: Sequence[int]
    decode_input_ids: Sequence[int]
    block_tables: Mapping[str, npt.NDArray[np.int32]]
    num_tokens: int

    def is_mid_chunk(self, row: int) -> bool:
        """Whether the row is a chunk that does not complete its prompt; it samples nothing."""
        return row < self.num_extends and (
            self.extend_prefix_lens[row] + self.input_lengths[row] < self.prefill_lengths[row]
        )


@define(eq=False)
class Plan:
    """One round's work. The device must run it in this order: `saves`, `copy` {group: int32 [n, 2]
    source and destination pages}, `zero` {group: int32 [n] pages}, `fills`, then the batch.

    Within a plan pages change hands: what a save reads may be copied over, what a copy reads may be
    zeroed or filled, and one copy's destination may be another one's source, so that all sources
    are read before a destination is written. `operations` holds the saves, then the fills.
    `storage` is not the device's: a plugin carries it out, apart from all this.
    """

    batch: Batch | None
    operations: tuple[CacheOperation, ...]
    zero: Mapping[str, npt.NDArray[np.int32]]
    copy: Mapping[str, npt.NDArray[np.int32]]
    aborts: tuple[SchedulerAbort, ...]
    needs_device: bool
    native: object = None
    storage: tuple[StorageOperation, ...] = ()

    @property
    def saves(self) -> Sequence[CacheOperation]:
        """Snapshots and write-backs: they read device pages that the plan may give away."""
        return [each for each in self.operations if each.kind in _SAVES]

    @property
    def fills(self) -> Sequence[CacheOperation]:
        """Restores, load-backs and plugins' own: they write device pages the batch may read."""
        return [each for each in self.operations if each.kind not in _SAVES]


@frozen
class SchedulerSizes:
    """How many requests are in each state, and pages: the driver's own counts.

    `waiting` counts the backlog, what the scheduler has not begun, and retracted requests.
    """

    waiting: int
    prefilling: int
    decoding: int
    retracted: int
    active_pages: int
    empty_pages: int
    total_pages: int


@frozen
class CacheGroup:
    """Layers that share page tables; `page_size` in tokens."""

    name: str
    page_size: int
    sliding_window: int | None = None


@define(kw_only=True)
class SchedulerSettings:
    """What the scheduler is built with. Pages include page 0, which is never given out.

    `snapshot_pages` above 1 lets requests be retracted into a pool of that many pages.
    The host tier has `host_pages`, or as many as fit `host_bytes` on each rank, which are known
    once the model is; one of the two is 0, and both without a host tier. `storage` is for a plugin
    that carries out `Plan.storage`, and needs host pages.
    `native_options` are set on the native configuration as they are, for plugins.
    """

    page_size: int = 64
    num_pages: int = 513
    max_batch_size: int = 64
    max_scheduled_tokens: int = 2048
    mixed_batches: bool = True
    prefix_cache: bool = True
    snapshot_pages: int = 1
    max_retracted: int = 0
    force_retraction_every: int = 0
    host_pages: int = 0
    host_bytes: int = 0
    storage: StorageSettings | None = None
    decode_width: int = 1
    groups: tuple[CacheGroup, ...] = ()
    native_options: dict[str, object] = field(factory=dict)


@frozen
class RequestSpec:
    """A request as the scheduler takes it."""

    request_id: str
    prompt_ids: Sequence[int]
    max_new_tokens: int
    max_cached_prefix: int | None = None


class Scheduler(Protocol):
    """What plugins may ask of the scheduler; nothing here changes it."""

    @property
    def sizes(self) -> SchedulerSizes:
        """How many requests and pages are in which state."""
        ...

    @property
    def max_request_tokens(self) -> int:
        """The largest prompt plus budget that can ever be admitted."""
        ...

    @property
    def storage_pending(self) -> bool:
        """Whether a storage operation is open or a request waits for one; a rank may not idle."""
        ...

    @property
    def storage_counts(self) -> Mapping[str, int]:
        """The scheduler's own figures of storage, by the native names; none without storage."""
        ...

    def request_length(self, request_id: str) -> int:
        """Prompt and generated tokens the scheduler counts, -1 when unknown."""
        ...

    @property
    def native(self) -> object:
        """The native scheduler, for plugins that read statistics of their own kinds."""
        ...


class SchedulerDriver(Scheduler, Protocol):
    """What the loop asks of a driver; see each method for what it refuses early.

    The driver answers every dispatched row exactly once: rows in `commit`, rows it withheld from a
    batch by itself, and rows of requests that ended, with an empty answer.
    """

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting, running or retracted."""
        ...

    def submit(self, specs: Sequence[RequestSpec]) -> None:
        """Queue new requests in arrival order. ValueError: empty prompt, live id, too large."""
        ...

    def has_room_for(self, request_id: str) -> bool:
        """Whether the id can be submitted now (not live, and not just ended)."""
        ...

    def cancel(self, request_id: str) -> bool:
        """End a request that no forward is running for; False if one is in flight or running
        rows still have to be committed, and then the end comes with its next commit."""
        ...

    def plan(self) -> Plan:
        """Plan the next round's work."""
        ...

    def commit(self, batch: Batch, outcome: CommitOutcome) -> None:
        """Queue the answers of one forward for the next `advance`."""
        ...

    def queue_events(self, events: Sequence[object]) -> None:
        """Queue native events of plugins behind the answers queued so far."""
        ...

    def advance_head(self, tick: StorageTick | None, done: Sequence[CacheAcknowledgment]) -> None:
        """Give the tick and the acknowledged operations to the scheduler, before a plan."""
        ...

    def advance(self) -> None:
        """Give everything queued to the scheduler, in order; nothing queued, no call."""
        ...

    def drain_events(self) -> Sequence[object]:
        """The cache events recorded since the last call; empty unless recording is on.

        They are the native scheduler's own, except that one CacheCleared stands for the removals of
        a `clear_cache` that removed anything.
        """
        ...

    def can_clear_cache(self) -> bool:
        """Whether nothing pins a page of the prefix cache."""
        ...

    def clear_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while something pins a page."""
        ...

    def clear_device_cache(self) -> bool:
        """Forget the prefixes on the device and keep those of the host tier."""
        ...


@define(eq=False)
class CommitOutcome:
    """What became of each row of a forward, as the scheduler needs it.

    `tokens[i]` is the row's one kept token, -1 for none (mid-chunk and late rows); `more[i]` holds
    the whole list for the few rows with several. `finished` rows publish their pages; `aborted`
    rows do not, and what they published before is forgotten: nobody may reuse what is in them.
    `suspect` rows go on, and nobody may reuse theirs either, nor any store keep them.
    """

    tokens: Sequence[int]
    more: Mapping[int, list[int]] = field(factory=dict)
    finished: Sequence[int] = ()
    aborted: Sequence[int] = ()
    suspect: Sequence[int] = ()
