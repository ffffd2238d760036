# SPDX-License-Identifier: MIT
"""A command that torchrun started several times: the first rank does it, the others follow.

The first rank of each further replica is an engine of its own, which connects to the front end that
the first rank of all runs.
"""

from __future__ import annotations

import os

from tokenspeed_core.config import EngineConfig
from tokenspeed_core.ranks.meeting import Seat, is_torchrun, torchrun_seat
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.serving.engine_ranks import member
from tokenspeed_core.serving.follower_main import run_follower
from tokenspeed_core.serving.lifeline import StopSwitch


def follow(config: EngineConfig) -> bool:
    """Run this process's rank to its end if it is not the first; False if there is none to run.

    ConfigError if torchrun was started for another topology.
    """
    if not is_torchrun() or os.environ["RANK"] == "0":
        return False
    seat = torchrun_seat(Topology.of(config.engine))
    assert seat is not None, "torchrun gave this process a rank"
    stop = StopSwitch()
    stop.install()
    try:
        if seat.topology.is_first(seat.rank):
            _run_replica(config, seat, stop=stop)
        else:
            run_follower(config, seat, stop=stop)
    finally:
        stop.disarm()
    return True


def _run_replica(config: EngineConfig, seat: Seat, *, stop: StopSwitch) -> None:
    from tokenspeed_core.serving.first_rank import run_first
    from tokenspeed_core.wire.frontend import ZmqFrontend

    with member(seat, config) as ranks:
        frontend = ZmqFrontend(seat.hear_handshake())
        index = seat.topology.place(seat.rank).replica
        run_first(config, frontend, ranks=ranks, index=index, stop=stop)
