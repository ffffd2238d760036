# SPDX-License-Identifier: MIT
"""What a data plane needs to meet the data planes of the other ranks."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from tokenspeed_core.ranks.topology import Place, Topology

LOOPBACK = "127.0.0.1"


@frozen(eq=False)
class DeviceSeat:
    """A rank's place, a torch.distributed store that all ranks reach, how many of them share this
    host's cores, and the address of this host at which they reach each other."""

    rank: int
    topology: Topology
    store: Any  # boundary: torch's stores, which this package does not import
    local_size: int = 1
    host: str = LOOPBACK

    @property
    def place(self) -> Place:
        """Where the rank stands."""
        return self.topology.place(self.rank)
