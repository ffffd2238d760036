# SPDX-License-Identifier: MIT
"""The control operation `describe`: what an engine is composed of, and what it is doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tokenspeed_core.composition.plugin_class import LoadedPlugin
from tokenspeed_core.composition.rank_engine import RankEngine
from tokenspeed_core.composition.report import hooks_in_order, loaded_row
from tokenspeed_core.config import EngineConfig
from tokenspeed_hookspecs import ControlOperation, ControlReply

DESCRIBE = "describe"


def describing(
    config: EngineConfig, members: Sequence[LoadedPlugin], *, engine: RankEngine
) -> ControlOperation:
    """The operation of one rank; its reply's values can be written as JSON."""

    def handle(arguments: Mapping[str, object]) -> ControlReply:
        if arguments:
            text = f"unknown argument {next(iter(arguments))!r}; {DESCRIBE} takes none"
            return ControlReply(DESCRIBE, success=False, message=text)
        values = {**composition, **_now(engine)}
        return ControlReply(DESCRIBE, success=True, values=values)

    composition = _composition(config, members)
    return ControlOperation(DESCRIBE, handle, "what the engine is composed of and does")


def _composition(config: EngineConfig, members: Sequence[LoadedPlugin]) -> dict[str, object]:
    return {
        "data_plane": config.engine.data_plane,
        "depth": config.engine.depth,
        "plugins": [attrs.asdict(loaded_row(member)) for member in members],
        "hooks": {hook: list(names) for hook, names in hooks_in_order(members).items()},
    }


def _now(engine: RankEngine) -> dict[str, object]:
    """The model is read now: a data plane may know all of it only once it has loaded it."""
    return {
        "model": attrs.asdict(engine.model),
        "state": engine.controls.describe(),
        "sizes": {**attrs.asdict(engine.scheduler.sizes), "registered": len(engine.requests)},
        "counters": dict(engine.counters),
    }
