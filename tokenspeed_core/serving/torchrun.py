# SPDX-License-Identifier: MIT
"""A command that torchrun started several times: the first rank does it, the others follow."""

from __future__ import annotations

import os

from tokenspeed_core.config import EngineConfig
from tokenspeed_core.ranks.meeting import is_torchrun, torchrun_seat
from tokenspeed_core.ranks.topology import Topology
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
        run_follower(config, seat, stop=stop)
    finally:
        stop.disarm()
    return True
