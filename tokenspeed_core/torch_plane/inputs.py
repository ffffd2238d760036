# SPDX-License-Identifier: MIT
"""One forward's inputs, as the decoder takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


@define(eq=False)
class ForwardInputs:
    """A mixed batch, flat over its rows: first `num_extends` prompt chunks, then decode rows.

    `token_ids` and `positions`: int64 [tokens], on the device. Per row: `row_lengths` (tokens fed),
    `context_lengths` (positions cached once this forward ran). `block_table`: int32 [rows, width]
    page ids. `logit_rows`: int64 [n], the flat token indices whose logits are wanted.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    row_lengths: list[int]
    context_lengths: list[int]
    num_extends: int
    block_table: npt.NDArray[np.int32]
    logit_rows: torch.Tensor

    @property
    def wants_all(self) -> bool:
        """Whether every token's logits are wanted, in order: so it is when all rows decode."""
        return self.num_extends == 0 and len(self.logit_rows) == len(self.row_lengths)
