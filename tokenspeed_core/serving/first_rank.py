# SPDX-License-Identifier: MIT
"""The first rank of a replica: the one that speaks to the front end."""

from __future__ import annotations

from tokenspeed_core.config import EngineConfig
from tokenspeed_core.ranks.membership import Membership
from tokenspeed_core.serving.heap import settled_heap
from tokenspeed_core.serving.lifeline import StopSwitch
from tokenspeed_core.wire.frontend import ZmqFrontend


def run_first(
    config: EngineConfig,
    frontend: ZmqFrontend,
    *,
    ranks: Membership,
    index: int,
    stop: StopSwitch,
) -> None:
    """Compose, load, connect as the engine of this index, and run rounds until asked to stop."""
    from tokenspeed_core.composition.build import Surroundings, build_rank
    from tokenspeed_core.model_tokenizer import model_tokenizer
    from tokenspeed_core.serving.engine_info import engine_info

    tokenizer = model_tokenizer(config)
    around = Surroundings(
        frontend=frontend,
        ranks=ranks,
        decode_text=tokenizer.decode if tokenizer is not None else None,
        tokenizer=tokenizer,
    )
    rank = build_rank(config, surroundings=around)
    try:
        rank.start()
        frontend.start(engine_info(rank, index=index))
        with settled_heap(), stop.between_rounds():
            rank.run(stop.read)
    finally:
        frontend.close()
        rank.stop()
