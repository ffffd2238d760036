# SPDX-License-Identifier: MIT
"""From the scheduler's batch to the decoder's inputs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tokenspeed_core.torch_plane.device import placed
from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_hookspecs import Batch, LogprobPlan

Ints = npt.NDArray[np.int64]


class LastTokens:
    """The token sampled last in each slot, int64 [slots], on the device: it is fed next."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._tokens = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def keep(self, slots: Tensor, tokens: Tensor) -> None:
        """Keep a forward's tokens; that of a row which does not sample is never fed."""
        self._tokens[slots] = tokens

    def fed(self, slots: Tensor, given: Ints) -> Tensor:
        """What decode rows feed: the given token, the kept one where that is -1."""
        kept = self._tokens[slots]
        if (given < 0).all():
            return kept
        host = placed(given, kept.device)
        return torch.where(host < 0, kept, host)


def build_inputs(
    batch: Batch, lengths: Ints, *, group: str, token_ids: Tensor, logprobs: LogprobPlan | None
) -> ForwardInputs:
    """Lay out a batch; `lengths` int64 [rows] counts this forward's own tokens.

    Logits are wanted of each row's last token, in row order, then of the planned prompt positions.
    """
    fed = np.asarray(batch.input_lengths, dtype=np.int64)
    ends = np.cumsum(fed)
    # Position of a row's first token, less its place in the flat batch, for each of its tokens.
    shifts = np.repeat(lengths - ends, fed)
    positions = shifts + np.arange(len(shifts))
    wanted = ends - 1
    if logprobs is not None and any(logprobs.counts):
        wanted = np.concatenate([wanted, scored_positions(logprobs)])
    device = token_ids.device
    return ForwardInputs(
        token_ids=token_ids,
        positions=placed(positions, device),
        row_lengths=batch.input_lengths,
        context_lengths=lengths.tolist(),
        num_extends=batch.num_extends,
        # Narrow rows may be padded with -1, which would index the last page; 0 is the null page.
        block_table=np.maximum(batch.block_tables[group], 0),
        logit_rows=placed(wanted, device),
    )


def flat_token_ids(batch: Batch, slots: Tensor, *, last: LastTokens) -> Tensor:
    """The tokens a batch feeds, int64 [tokens] on the device of `slots` [rows]."""
    parts = []
    if batch.num_extends:
        parts.append(placed(np.asarray(batch.input_ids, dtype=np.int64), slots.device))
    if batch.num_extends < len(batch.request_ids):
        fed = np.asarray(batch.decode_input_ids, dtype=np.int64)
        parts.append(last.fed(slots[batch.num_extends :], fed))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def scored_positions(plan: LogprobPlan) -> Ints:
    """The planned prompt positions as places in the flat batch, int64 [n], in plan order."""
    spans = zip(plan.row_starts, plan.counts, strict=True)
    found = [np.arange(start, start + count, dtype=np.int64) for start, count in spans]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
