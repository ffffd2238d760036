# SPDX-License-Identifier: MIT
"""What a data plane needs to meet the data planes of the other ranks."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from tokenspeed_core.ranks.topology import Place, Topology


@frozen(eq=False)
class DeviceSeat:
    """A rank's place, a torch.distributed store that all ranks reach, and how many of them share
    this host's cores."""

    rank: int
    topology: Topology
    store: Any  # boundary: torch's stores, which this package does not import
    local_size: int = 1

    @property
    def place(self) -> Place:
        """Where the rank stands."""
        return self.topology.place(self.rank)
