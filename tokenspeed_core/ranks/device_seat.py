# SPDX-License-Identifier: MIT
"""What a data plane needs to meet the data planes of the other ranks."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from tokenspeed_core.ranks.topology import Place, Topology


@frozen(eq=False)
class DeviceSeat:
    """A rank's place, and a torch.distributed store that all ranks reach."""

    rank: int
    topology: Topology
    store: Any  # boundary: torch's stores, which this package does not import

    @property
    def place(self) -> Place:
        """Where the rank stands."""
        return self.topology.place(self.rank)
