# SPDX-License-Identifier: MIT
"""Which of a request's cached prompt tokens came from below the device.

A load-back's pages are used by a prompt of the same plan; where in its table they stand says which
of its tokens they hold. Nobody else tells: the scheduler counts hits of all tiers together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenspeed_core.requests.state import RequestState
from tokenspeed_hookspecs import Batch, CacheGroup, CacheOperationKind, Plan


def note_loaded(
    plan: Plan, states: Sequence[RequestState | None], *, groups: Sequence[CacheGroup]
) -> None:
    """Count, for the prompts of a plan, the cached tokens whose pages its load-backs fill."""
    loaded = _destinations(plan)
    batch = plan.batch
    if not loaded or batch is None:
        return
    for row in range(batch.num_extends):
        state = states[row]
        if state is not None:
            # A token is spread over the groups; it came from the host tier if any part of it did.
            state.loaded_tokens += max(
                (
                    _count(batch, row, pages=loaded[group.name], group=group, state=state)
                    for group in groups
                    if group.name in loaded
                ),
                default=0,
            )


def _destinations(plan: Plan) -> dict[str, set[int]]:
    pages: dict[str, set[int]] = {}
    for operation in plan.operations:
        if operation.kind is CacheOperationKind.LOAD_BACK:
            for move in operation.moves:
                pages.setdefault(move.group, set()).update(map(int, move.destinations))
    return pages


def _count(
    batch: Batch, row: int, *, pages: set[int], group: CacheGroup, state: RequestState
) -> int:
    """Tokens of the row's prefix, beyond what it had computed itself, that stand in `pages`."""
    start = state.computed_length
    stop = batch.extend_prefix_lens[row] + batch.extend_replay_lens[row]
    table = batch.block_tables[group.name][row]
    size = group.page_size
    found = np.flatnonzero(np.isin(table, list(pages))).tolist()
    return sum(max(0, min(stop, (at + 1) * size) - max(start, at * size)) for at in found)
