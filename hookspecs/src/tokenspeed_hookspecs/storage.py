# SPDX-License-Identifier: MIT
"""A store behind the host tier, as the scheduler sees it.

The scheduler plans everything: which pages to look for, to fetch into host pages and to put away.
A plugin carries the operations out and answers each of them once, in a tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from attrs import frozen


class StorageOperationKind(Enum):
    """What a storage operation asks for."""

    QUERY = "query"  # which of the keys exist
    GET = "get"  # fetch the keys into their host pages
    PUT = "put"  # store the keys from their host pages
    CANCEL = "cancel"  # the query or get of this id is of no use any more; it still answers once


@frozen
class StorageKey:
    """One page: its cache group, the hash of all tokens up to its end as 64 hex digits, and, where
    a group has several pages to one hash, which of them."""

    group: str
    content_hash: str
    page_offset: int


@frozen
class StorageOperation:
    """One operation; `pages` are the host pages of a get or put, as long as `keys`.

    The scheduler keeps those pages for the operation until its result, and what a put reads is
    complete by the time it is planned.
    """

    op_id: int
    kind: StorageOperationKind
    keys: Sequence[StorageKey] = ()
    pages: Sequence[int] = ()


@frozen
class StorageResult:
    """How an operation ended, in the order of its keys.

    `success`: it exists, it landed whole, it is stored. `failed`, of a get only: the object itself
    is bad and is not asked for again. With `is_retired` false a transport may still touch the host
    pages: the scheduler never gives those out again, and puts nothing away any more.
    """

    op_id: int
    success: Sequence[bool]
    failed: Sequence[bool] = ()
    is_retired: bool = True


@frozen
class StorageTick:
    """The scheduler's clock and permissions for a round, and what happened since the last one.

    The clock may repeat and must not go back. `detached` requests wait for the store no longer.
    `events` are native ones that go before all of this.
    """

    now_us: int = 0
    allow_forward: bool = True
    allow_storage: bool = True
    queued_operations: int = 0
    queued_bytes: int = 0
    oldest_operation_us: int = 0
    results: tuple[StorageResult, ...] = ()
    detached: tuple[str, ...] = ()
    events: tuple[object, ...] = ()


@frozen
class StoragePressure:
    """How far a store is behind: operations not begun, their bytes, and the oldest one's age."""

    queued_operations: int
    queued_bytes: int
    oldest_operation_us: int


@frozen(kw_only=True)
class StorageSettings:
    """The scheduler's limits for a store.

    `max_host_pages` may be more than there are, to mean all of them. A request wins at most
    `max_keys_per_operation` pages, those of one get. One with fewer than
    `min_prefetch_tokens` to win does not ask. It waits for its pages at most `wait_timeout_us`, and
    they for it at most `ready_timeout_us`. Above a mark of `pressure_high` requests pass the store
    by and puts are dropped, until every figure is at `pressure_low` again.
    """

    max_operations: int
    max_keys_per_operation: int
    max_host_pages: int
    metadata_entries: int
    min_prefetch_tokens: int
    max_prefetch_tokens: int
    wait_timeout_us: int
    ready_timeout_us: int
    pressure_high: StoragePressure
    pressure_low: StoragePressure
