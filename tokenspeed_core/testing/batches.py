# SPDX-License-Identifier: MIT
"""Batches and plans written by hand, for tests of data planes and their extensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from tokenspeed_hookspecs import Batch, CacheOperation, Plan


@frozen
class ExtendRow:
    """A chunk of a prompt: `length` tokens of it from `prefix` on."""

    request_id: str
    prompt: Sequence[int]
    pages: Sequence[int]
    slot: int = 1
    prefix: int = 0
    length: int | None = None

    @property
    def end(self) -> int:
        """One past the chunk's last position."""
        return len(self.prompt) if self.length is None else self.prefix + self.length


@frozen
class DecodeRow:
    """One token; `token` of -1 is still on the device."""

    request_id: str
    pages: Sequence[int]
    slot: int = 1
    token: int = -1


def batch_of(
    extends: Sequence[ExtendRow], decodes: Sequence[DecodeRow] = (), *, group: str = "full"
) -> Batch:
    """A batch of these rows, with one group's block table."""
    rows: list[ExtendRow | DecodeRow] = [*extends, *decodes]
    width = max(len(row.pages) for row in rows)
    table = np.zeros((len(rows), width), dtype=np.int32)
    for at, row in enumerate(rows):
        table[at, : len(row.pages)] = row.pages
    lengths = [row.end - row.prefix for row in extends] + [1] * len(decodes)
    shifted = [[*row.prompt, -1][row.prefix + 1 : row.end + 1] for row in extends]
    return Batch(
        request_ids=[row.request_id for row in rows],
        slots=np.array([row.slot for row in rows], dtype=np.int64),
        incarnations=[1] * len(rows),
        input_lengths=lengths,
        num_extends=len(extends),
        extend_prefix_lens=[row.prefix for row in extends],
        extend_replay_lens=[0] * len(extends),
        prefill_lengths=[len(row.prompt) for row in extends],
        input_ids=[token for row in extends for token in row.prompt[row.prefix : row.end]],
        shifted_input_ids=[token for part in shifted for token in part],
        decode_input_ids=[row.token for row in decodes],
        block_tables={group: table},
        num_tokens=sum(lengths),
    )


def plan_of(batch: Batch | None, operations: Sequence[CacheOperation] = ()) -> Plan:
    """A plan with this batch and these operations, and nothing to zero or copy."""
    needs_device = batch is not None or bool(operations)
    return Plan(batch, tuple(operations), {}, {}, (), needs_device)
