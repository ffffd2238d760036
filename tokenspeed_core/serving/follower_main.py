# SPDX-License-Identifier: MIT
"""The process of a rank that follows the first of its replica; it has no frontend.

It ends with the loop, which the ranks agree to stop, or with its parent.
"""

from __future__ import annotations

import faulthandler
import logging
import shutil
import sys
import tomllib
from pathlib import Path

from tokenspeed_core.config import EngineConfig, from_tables
from tokenspeed_core.errors import CompositionError, EngineError
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.ranks.meeting import Seat, local_seat
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.serving.engine_ranks import member
from tokenspeed_core.serving.follower_order import FollowerOrder
from tokenspeed_core.serving.heap import settled_heap
from tokenspeed_core.serving.lifeline import StopSwitch, follow_parent, read_line

FAILED, REFUSED = 1, 2


def main() -> int:
    """Run the rank that the parent orders; returns the process's exit code."""
    faulthandler.enable()
    stop = StopSwitch()
    stop.install()
    order = FollowerOrder.from_line(read_line())
    is_alone = follow_parent()
    logging.basicConfig(format=f"%(levelname)s rank {order.rank}: %(message)s")
    config = from_tables(tomllib.loads(order.config))
    topology = Topology.of(config.engine)
    seat = local_seat(order.rank, topology, folder=Path(order.folder))
    try:
        run_follower(config, seat, stop=stop)
    except (CompositionError, ModelError, EngineError) as error:
        logging.getLogger("tokenspeed").error("%s", error)
        return REFUSED if isinstance(error, CompositionError | ModelError) else FAILED
    finally:
        stop.disarm()
        if is_alone.is_set():  # a first rank that was killed did not remove it
            shutil.rmtree(order.folder, ignore_errors=True)
    return 0


def run_follower(config: EngineConfig, seat: Seat, *, stop: StopSwitch) -> None:
    """Meet the others, compose, load, and run rounds until all agree to stop."""
    from tokenspeed_core.composition.build import Surroundings, build_rank
    from tokenspeed_core.model_tokenizer import model_tokenizer

    with member(seat, config) as ranks:
        tokenizer = model_tokenizer(config)
        around = Surroundings(
            ranks=ranks,
            decode_text=tokenizer.decode if tokenizer is not None else None,
            tokenizer=tokenizer,
        )
        rank = build_rank(config, surroundings=around)
        try:
            rank.start()
            with settled_heap(), stop.between_rounds():
                rank.run(stop.read)
        finally:
            rank.stop()


if __name__ == "__main__":
    sys.exit(main())
