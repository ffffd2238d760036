# SPDX-License-Identifier: MIT
"""Where the engines of a deployment find its front end, and who starts them.

On one host the front end starts all of them and meets them at files. torchrun starts the others
itself, on any host, so they are taken over the network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tokenspeed_core.client.addresses import Addresses, private_addresses
from tokenspeed_core.ranks.meeting import is_torchrun, own_address


@contextmanager
def frontend_addresses(num_replicas: int) -> Iterator[Addresses]:
    """Addresses to bind, which every engine of the deployment can reach."""
    if num_replicas > 1 and is_torchrun():
        yield Addresses.at(own_address(os.environ["MASTER_ADDR"]))
        return
    with private_addresses() as addresses:
        yield addresses


def started_here(engine_indices: Sequence[int]) -> Sequence[int]:
    """The engines the front end has to start."""
    return engine_indices[:1] if is_torchrun() else engine_indices
