# SPDX-License-Identifier: MIT
"""Taking rows out of a batch that the device must not run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TypeVar

from tokenspeed_hookspecs import Batch

_T = TypeVar("_T")


def without_rows(batch: Batch, withheld: Collection[int]) -> Batch:
    """A batch of the other rows, in the same order."""
    extends = [row for row in range(batch.num_extends) if row not in withheld]
    rows = [row for row in range(len(batch.request_ids)) if row not in withheld]
    decodes = [row - batch.num_extends for row in rows if row >= batch.num_extends]
    lengths = _pick(batch.input_lengths, rows)
    return Batch(
        request_ids=_pick(batch.request_ids, rows),
        slots=batch.slots[rows],
        incarnations=_pick(batch.incarnations, rows),
        input_lengths=lengths,
        num_extends=len(extends),
        extend_prefix_lens=_pick(batch.extend_prefix_lens, extends),
        extend_replay_lens=_pick(batch.extend_replay_lens, extends),
        prefill_lengths=_pick(batch.prefill_lengths, extends),
        input_ids=_pick_flat(batch, extends, values=batch.input_ids),
        shifted_input_ids=_pick_flat(batch, extends, values=batch.shifted_input_ids),
        decode_input_ids=_pick(batch.decode_input_ids, decodes),
        block_tables={group: table[rows] for group, table in batch.block_tables.items()},
        num_tokens=sum(lengths),
    )


def _pick(values: Sequence[_T], rows: Sequence[int]) -> list[_T]:
    return [values[row] for row in rows]


def _pick_flat(batch: Batch, extends: Sequence[int], *, values: Sequence[int]) -> list[int]:
    starts = [0, *accumulate(batch.input_lengths[: batch.num_extends])]
    return [value for row in extends for value in values[starts[row] : starts[row + 1]]]
