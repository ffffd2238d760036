# SPDX-License-Identifier: MIT
"""How much of a model one decoder is, and what links it to the rest."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from tokenspeed_core.torch_plane.device_ranks import Positions, Stages


@frozen(kw_only=True)
class DecoderPart:
    """`first_layer` is the number its first layer has in the model. A part that is not the first is
    given hidden states, one that is not the last hands them on; with `splits_head` its head gives
    some of the vocabulary's logits, and `positions` have the others.

    `max_positions` is the longest sequence it will see; without it the model's longest.
    """

    first_layer: int = 0
    is_first: bool = True
    is_last: bool = True
    splits_head: bool = False
    max_positions: int | None = None
    positions: Positions | None = None
    stages: Stages | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the model."""
        return self.positions is None and self.stages is None

    def summed(self, x: Tensor) -> Tensor:
        """A product of which each position has computed a part, in place."""
        return x if self.positions is None else self.positions.sum_(x)

    def all_logits(self, logits: Tensor) -> Tensor:
        """The whole vocabulary's logits."""
        if self.positions is None or not self.splits_head:
            return logits
        return self.positions.joined(logits)


WHOLE = DecoderPart()
