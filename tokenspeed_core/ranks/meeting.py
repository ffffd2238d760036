# SPDX-License-Identifier: MIT
"""How the ranks of a deployment find each other, through a store that all of them can reach.

Ranks that one command starts on one host meet in a folder only their user may enter. Those that
torchrun starts, on any number of hosts, meet in its store, at the address it was given.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol, cast

from attrs import field, frozen

from tokenspeed_core.errors import ConfigError
from tokenspeed_core.ranks.device_seat import LOOPBACK, DeviceSeat
from tokenspeed_core.ranks.mesh import RankError
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.ranks.zmq_mesh import MeshLimits, ZmqMesh

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
HANDSHAKE = "frontend/handshake"
TOKEN_BYTES = 32
POLL_S = 0.02


def _no_check() -> None:
    """Nobody knows better than the store who is missing."""


class Store(Protocol):
    """Small values by key; a torch.distributed store is one."""

    def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        ...

    def get(self, key: str) -> bytes:
        """The value, once it is set."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Whether all of these are set."""
        ...


@frozen(kw_only=True)
class Seat:
    """A rank's place before it has met the others; `address` is where it will listen."""

    rank: int
    topology: Topology
    store: Store
    address: str
    local_size: int = 1
    host: str = LOOPBACK
    limits: MeshLimits = field(factory=MeshLimits)

    @property
    def device(self) -> DeviceSeat:
        """Where the rank's data plane meets the others."""
        return DeviceSeat(self.rank, self.topology, self.store, self.local_size, self.host)

    def meet(self, check: Callable[[], None] = _no_check) -> ZmqMesh:
        """Listen, tell the others where, and connect to all of them. RankError names who is
        missing. `check` is called while it waits, and may raise."""
        if self.rank == 0:
            self.store.set("mesh/token", secrets.token_bytes(TOKEN_BYTES))
        mesh = ZmqMesh(self.rank, self._get("mesh/token", 0, check=check), self.limits)
        try:
            self.store.set(f"mesh/{self.rank}", mesh.bind(self.address).encode())
            ranks = range(self.topology.world_size)
            found = {rank: self._get(f"mesh/{rank}", rank, check=check).decode() for rank in ranks}
            mesh.connect(found, check)
        except BaseException:
            mesh.close()
            raise
        return mesh

    def tell_handshake(self, address: str) -> None:
        """Tell the other replicas where the one front end takes their engines."""
        self.store.set(HANDSHAKE, address.encode())

    def hear_handshake(self, check: Callable[[], None] = _no_check) -> str:
        """What `tell_handshake` told; RankError if the first rank does not in time."""
        return self._get(HANDSHAKE, 0, check=check).decode()

    def _get(self, key: str, rank: int, *, check: Callable[[], None]) -> bytes:
        # The store's own wait would hear neither a signal nor of a rank that died.
        until = time.monotonic() + self.limits.connect_s
        while not self.store.check([key]):
            check()
            if time.monotonic() > until:
                raise RankError(
                    f"rank {rank} did not come within {self.limits.connect_s:g} s; did it start?"
                )
            time.sleep(POLL_S)
        return bytes(self.store.get(key))


def local_seat(rank: int, topology: Topology, *, folder: Path) -> Seat:
    """The seat of a rank on this host; all of them are given the same folder."""
    # Importing it takes a second, which an engine of one rank need not pay here.
    from torch._C._distributed_c10d import FileStore

    limits = MeshLimits()
    path = folder / "store"
    path.touch(mode=0o600)  # without it the first look waits for it, deaf to signals
    store = FileStore(str(path), topology.world_size)
    store.set_timeout(timedelta(seconds=limits.connect_s))
    address = f"ipc://{folder}/rank-{rank}"
    return Seat(
        rank=rank,
        topology=topology,
        store=cast("Store", store),
        address=address,
        local_size=topology.world_size,
    )


def is_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun started this process."""
    return all(name in environment for name in TORCHRUN)


def torchrun_seat(topology: Topology, environment: Mapping[str, str] = os.environ) -> Seat | None:
    """The seat torchrun gave this process; None if it did not start it.

    ConfigError if it started another number of ranks than the topology has.
    """
    if not is_torchrun(environment):
        return None
    size = int(environment["WORLD_SIZE"])
    if size != topology.world_size:
        raise ConfigError(
            [
                f"torchrun started {size} ranks, and tp {topology.tp} x pp {topology.pp} x dp "
                f"{topology.dp} needs {topology.world_size}"
            ]
        )
    from torch.distributed.rendezvous import rendezvous

    limits = MeshLimits()
    timeout = timedelta(seconds=limits.connect_s)
    store, rank, _ = next(rendezvous("env://", timeout=timeout))
    host = own_address(environment["MASTER_ADDR"])
    return Seat(
        rank=rank,
        topology=topology,
        store=cast("Store", store),
        address=f"tcp://{host}",
        local_size=int(environment.get("LOCAL_WORLD_SIZE", "1")),
        host=host,
    )


def own_address(peer: str) -> str:
    """This host's address on the way to a peer; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        found: str = probe.getsockname()[0]
        return found
