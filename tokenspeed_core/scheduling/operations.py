# SPDX-License-Identifier: MIT
"""A plan's cache operations in the contract's words and in the order the device must run them.

Pages that a snapshot or a write-back reads can be given to another row in the same plan, so those
come first; restores and load-backs fill pages the forward reads, so they come before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenspeed_hookspecs import (
    CacheOperation,
    CacheOperationKind,
    PageMove,
    StorageKey,
    StorageOperation,
    StorageOperationKind,
)

KINDS: Mapping[str, CacheOperationKind] = {
    "SnapshotOp": CacheOperationKind.SNAPSHOT,
    "WriteBackOp": CacheOperationKind.WRITE_BACK,
    "RestoreOp": CacheOperationKind.RESTORE,
    "LoadBackOp": CacheOperationKind.LOAD_BACK,
}
STORAGE_KINDS: Mapping[str, StorageOperationKind] = {
    "StorageQueryOp": StorageOperationKind.QUERY,
    "StorageGetOp": StorageOperationKind.GET,
    "StoragePutOp": StorageOperationKind.PUT,
    "StorageCancelOp": StorageOperationKind.CANCEL,
}
_READS_DEVICE = (CacheOperationKind.SNAPSHOT, CacheOperationKind.WRITE_BACK)


def device_order(natives: Sequence[Any], groups: Sequence[str]) -> tuple[CacheOperation, ...]:
    """The operations of a plan, one per operation id; `groups` are names by native index."""
    operations = [
        single
        for native in natives
        if type(native).__name__ not in STORAGE_KINDS
        for single in _singles(native, groups)
    ]
    return tuple(sorted(operations, key=lambda operation: _rank(operation.kind)))


def storage_operations(
    natives: Sequence[Any], groups: Sequence[str]
) -> tuple[StorageOperation, ...]:
    """The storage operations of a plan, in its order; none of them is the device's."""
    return tuple(
        _stored(native, kind, groups=groups)
        for native in natives
        if (kind := STORAGE_KINDS.get(type(native).__name__)) is not None
    )


def _stored(native: Any, kind: StorageOperationKind, *, groups: Sequence[str]) -> StorageOperation:
    if kind is StorageOperationKind.CANCEL:
        return StorageOperation(native.op_id, kind)
    return StorageOperation(
        op_id=native.op_id,
        kind=kind,
        keys=tuple([StorageKey(groups[group], *rest) for group, *rest in native.keys]),
        pages=() if kind is StorageOperationKind.QUERY else tuple(native.host_blocks),
    )


def _rank(kind: CacheOperationKind) -> int:
    if kind in _READS_DEVICE:
        return 0
    return 2 if kind is CacheOperationKind.OTHER else 1


def _singles(native: Any, groups: Sequence[str]) -> Iterator[CacheOperation]:
    kind = KINDS.get(type(native).__name__, CacheOperationKind.OTHER)
    if kind is CacheOperationKind.OTHER:
        yield CacheOperation(op_id=native.op_id, kind=kind, native=native)
        return
    pages = _Pages(native)
    is_image = kind in (CacheOperationKind.SNAPSHOT, CacheOperationKind.RESTORE)
    requests = native.request_ids if is_image else []
    slots = native.request_pool_indices if is_image else []
    images = native.snapshot_slots if is_image else []
    for index, op_id in enumerate(native.op_ids):
        yield CacheOperation(
            op_id=op_id,
            kind=kind,
            moves=pages.moves(index, groups),
            request_id=requests[index] if is_image else None,
            slot=slots[index] if is_image else 0,
            image=images[index] if is_image else 0,
            native=native,
        )


class _Pages:
    """The page lists of a native operation, read once: each read copies them."""

    def __init__(self, native: Any) -> None:
        self._groups: list[list[int]] = native.group_ids
        self._sources: list[list[int]] = native.src_pages
        self._destinations: list[list[int]] = native.dst_pages
        self._tiers: list[list[int]] | None = getattr(native, "source_tiers", None)

    def moves(self, index: int, groups: Sequence[str]) -> tuple[PageMove, ...]:
        members = self._groups[index]
        return tuple(
            PageMove(
                group=groups[group],
                sources=_members(members, group, values=self._sources[index]),
                destinations=_members(members, group, values=self._destinations[index]),
                source_tiers=_members(members, group, values=self._tiers[index])
                if self._tiers
                else (),
            )
            for group in sorted(set(members))
        )


def _members(members: Sequence[int], group: int, *, values: Sequence[int]) -> tuple[int, ...]:
    return tuple(value for member, value in zip(members, values, strict=True) if member == group)
