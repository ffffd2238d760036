# SPDX-License-Identifier: MIT
"""Which cached tokens of a request the store brought, so that they are not told as the host tier's.

A get fills host pages; the plan that uses them loads them to the device, into pages that the tables
of its prompts name. Whoever uses them first had them from the store; later they are the host's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tokenspeed_hookspecs import (
    Batch,
    CacheGroup,
    CacheOperation,
    CacheOperationKind,
    Plan,
    StorageOperation,
    StorageResult,
)

Loaded = dict[str, set[int]]


class FetchedPages:
    """The host pages whose bytes the store brought and nobody has used yet, by group."""

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self._groups = groups
        self._pages: dict[str, set[int]] = {group.name: set() for group in groups}

    def landed(self, operation: StorageOperation, result: StorageResult) -> None:
        """A get ended."""
        for key, page, is_good in zip(operation.keys, operation.pages, result.success, strict=True):
            if is_good:
                self._pages[key.group].add(page)

    def forget(self) -> None:
        """The cache was cleared."""
        for pages in self._pages.values():
            pages.clear()

    def tokens(self, plan: Plan) -> Iterator[tuple[str, int]]:
        """The requests of a plan, and how many cached tokens each has from the store."""
        if not any(self._pages.values()) or not plan.operations:
            return
        loaded = self._loaded(plan.operations)
        batch = plan.batch
        if batch is None or not loaded:
            return
        for row in range(batch.num_extends):
            count = max(
                (
                    _count(batch, row, pages=loaded[group.name], group=group)
                    for group in self._groups
                    if group.name in loaded
                ),
                default=0,
            )
            if count:
                yield batch.request_ids[row], count

    def _loaded(self, operations: Sequence[CacheOperation]) -> Loaded:
        """The device pages that are filled from such host pages; those are no longer such."""
        loaded: Loaded = {}
        for operation in operations:
            for move in operation.moves:
                fresh = self._pages[move.group]
                if operation.kind is CacheOperationKind.WRITE_BACK:
                    fresh.difference_update(move.destinations)
                elif operation.kind is CacheOperationKind.LOAD_BACK:
                    pairs = zip(move.sources, move.destinations, strict=True)
                    found = [destination for source, destination in pairs if source in fresh]
                    loaded.setdefault(move.group, set()).update(found)
                    fresh.difference_update(move.sources)
        return loaded


def _count(batch: Batch, row: int, *, pages: set[int], group: CacheGroup) -> int:
    """Tokens of the row's prefix that stand in these pages."""
    stop = batch.extend_prefix_lens[row] + batch.extend_replay_lens[row]
    places = np.flatnonzero(np.isin(batch.block_tables[group.name][row], list(pages)))
    size = group.page_size
    return sum(max(0, min(stop, (at + 1) * size) - at * size) for at in places.tolist())
