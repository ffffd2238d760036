# SPDX-License-Identifier: MIT
"""What a client must know: where to listen, for which engines, and how long to be patient."""

from __future__ import annotations

from enum import Enum

from attrs import field, frozen, validators

from tokenspeed_core.client.addresses import Addresses

MAX_ENGINES = 1 << 16  # an engine's identity is its index in two bytes


class Routing(Enum):
    """How an engine is chosen for a request that names none."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"


def _positive(default: float) -> float:
    value: float = field(default=default, validator=validators.gt(0))
    return value


@frozen(kw_only=True)
class ClientConfig:
    """A deployment as its client sees it; times in seconds.

    `handshake_timeout_s` is for all engines together. An engine that takes nothing for
    `send_timeout_s`, or says nothing for `silence_limit_s` while it has requests, counts as dead;
    ours says something every few seconds as long as its loop goes round. `send_queue` is how
    many messages may wait for an engine that is busy.
    """

    addresses: Addresses
    first_engine: int = field(default=0, validator=validators.ge(0))
    num_engines: int = field(default=1, validator=validators.ge(1))
    routing: Routing = field(default=Routing.ROUND_ROBIN, converter=Routing)
    handshake_timeout_s: float = _positive(20.0)
    send_timeout_s: float = _positive(5.0)
    silence_limit_s: float = _positive(300.0)
    send_queue: int = field(default=10_000, validator=validators.ge(1))

    def __attrs_post_init__(self) -> None:
        if self.first_engine + self.num_engines > MAX_ENGINES:
            raise ValueError(
                f"expected engine indices below {MAX_ENGINES}, got {self.num_engines} engines from "
                f"{self.first_engine} on"
            )

    @property
    def engine_indices(self) -> range:
        """The engines' indices on the wire, in the order of their data-parallel ranks."""
        return range(self.first_engine, self.first_engine + self.num_engines)
