# SPDX-License-Identifier: MIT
"""The ranks of one engine: this process is the first, and starts the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenspeed_core.config import EngineConfig
from tokenspeed_core.ranks.meeting import Seat, local_seat, torchrun_seat
from tokenspeed_core.ranks.membership import Membership
from tokenspeed_core.ranks.mesh import ranks_of
from tokenspeed_core.ranks.single import SingleRank
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.serving.followers import followers, meeting_folder


@contextmanager
def engine_ranks(
    config: EngineConfig, *, replica: int = 0, folder: Path | None = None, handshake: str = ""
) -> Iterator[Membership]:
    """Start what follows this rank and meet them all; `folder` is where several replicas meet,
    `handshake` where the front end takes the engines of those that torchrun started."""
    topology = Topology.of(config.engine)
    given = torchrun_seat(topology)
    if given is not None:
        given.tell_handshake(handshake)
        with member(given, config) as ranks:
            yield ranks
    elif topology.world_size == 1:
        yield SingleRank()
    elif folder is None:
        with meeting_folder() as made, _met(config, topology, folder=made, replica=0) as ranks:
            yield ranks
    else:
        with _met(config, topology, folder=folder, replica=replica) as ranks:
            yield ranks


@contextmanager
def _met(
    config: EngineConfig, topology: Topology, *, folder: Path, replica: int
) -> Iterator[Membership]:
    seat = local_seat(replica * topology.replica_size, topology, folder=folder)
    with (
        followers(config, topology, folder=folder, replica=replica) as started,
        member(seat, config, check=started.check) as ranks,
    ):
        yield ranks


@contextmanager
def member(
    seat: Seat, config: EngineConfig, *, check: Callable[[], None] = lambda: None
) -> Iterator[Membership]:
    """Meet the others; they are told if this rank ends by an error. `check` is called while it
    waits for them, and may raise."""
    mesh = seat.meet(check)
    try:
        yield ranks_of(
            seat.topology, mesh, device=seat.device, is_checked=config.engine.check_ranks
        )
    except BaseException as error:
        mesh.fail(f"{type(error).__name__}: {error}")
        raise
    finally:
        mesh.close()
