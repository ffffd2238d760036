# SPDX-License-Identifier: MIT
"""The wheel's batch and page maps in the contract's form; each native property is read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tokenspeed_core.scheduling.flight import Rows
from tokenspeed_hookspecs import Batch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def decode_batch(native: Any, rows: Rows, *, width: int) -> Batch:
    """The batch of rows that all decode `width` tokens."""
    return Batch(
        request_ids=rows.request_ids,
        slots=rows.slots,
        incarnations=rows.incarnations,
        input_lengths=native.input_lengths,
        num_extends=0,
        extend_prefix_lens=[],
        extend_replay_lens=[],
        prefill_lengths=[],
        input_ids=(),
        shifted_input_ids=(),
        decode_input_ids=native.decode_input_ids,
        block_tables=native.block_tables_arrays(),
        num_tokens=width * len(rows.request_ids),
    )


def mixed_batch(native: Any, rows: Rows) -> Batch:
    """The batch of rows of which the first are prompt chunks."""
    lengths = native.input_lengths
    return Batch(
        request_ids=rows.request_ids,
        slots=rows.slots,
        incarnations=rows.incarnations,
        input_lengths=lengths,
        num_extends=rows.num_extends,
        extend_prefix_lens=native.extend_prefix_lens,
        extend_replay_lens=native.extend_replay_lens,
        prefill_lengths=native.prefill_lengths[: rows.num_extends],
        input_ids=native.input_ids,
        shifted_input_ids=native.shifted_input_ids,
        decode_input_ids=native.decode_input_ids,
        block_tables=native.block_tables_arrays(),
        num_tokens=sum(lengths),
    )


def pages_to_zero(native: Any) -> Mapping[str, npt.NDArray[np.int32]]:
    """Fresh pages by group, without the groups that have none."""
    # The lists are cheap to look at and nearly always empty; the arrays are not cheap to make.
    if not any(native.pages_to_zero.values()):
        return {}
    return {group: pages for group, pages in native.pages_to_zero_arrays().items() if len(pages)}


def pages_to_copy(native: Any) -> Mapping[str, npt.NDArray[np.int32]]:
    """Pages to duplicate by group, without the groups that have none."""
    if not any(native.pages_to_copy.values()):
        return {}
    return {group: pages for group, pages in native.pages_to_copy_arrays().items() if len(pages)}
