# SPDX-License-Identifier: MIT
"""The client's side of the wire: every engine of a deployment as one object."""

from __future__ import annotations

from tokenspeed_core.client.addresses import Addresses, private_addresses, private_folder
from tokenspeed_core.client.blocking import BlockingEngineClient
from tokenspeed_core.client.config import ClientConfig, Routing
from tokenspeed_core.client.engine_client import EngineClient

__all__ = [
    "Addresses",
    "BlockingEngineClient",
    "ClientConfig",
    "EngineClient",
    "Routing",
    "private_addresses",
    "private_folder",
]
