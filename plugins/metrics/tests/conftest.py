# SPDX-License-Identifier: MIT
"""Engines with the plugin, and what their series say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import evolve

from tokenspeed_core.testing import EngineFixture, EngineSetup
from tokenspeed_hookspecs import ControlRequest
from tokenspeed_metrics.plugin import Metrics

Values = dict[str, float]


@pytest.fixture
def engine() -> Iterator[Callable[..., EngineFixture]]:
    """Make an engine with the plugin and these options; stopped afterwards."""
    made: list[EngineFixture] = []

    def make(setup: EngineSetup | None = None, **options: Any) -> EngineFixture:
        setup = setup or EngineSetup()
        tables = {"metrics": options}
        setup = evolve(setup, plugins=(Metrics, *setup.plugins), tables=tables)
        made.append(EngineFixture(setup))
        return made[-1]

    yield make
    for each in made:
        each.rank.stop()


@pytest.fixture
def families() -> Callable[[EngineFixture], list[dict[str, Any]]]:
    """What the engine answers a front end."""

    def ask(engine: EngineFixture) -> list[dict[str, Any]]:
        engine.put(ControlRequest("metrics"))
        engine.rounds(1)
        reply = [each for each in engine.received.replies if each.name == "metrics"][-1]
        assert reply.success, reply.message
        found: Any = reply.values["families"]
        return list(found)

    return ask


@pytest.fixture
def values(families: Callable[[EngineFixture], list[dict[str, Any]]]) -> Callable[..., Values]:
    """Every sample by its name and its own labels, such as `kv_pages{state=empty}`."""

    def read(engine: EngineFixture) -> Values:
        found: Values = {}
        for family in families(engine):
            for ending, labels, value in family["samples"]:
                own = [f"{k}={v}" for k, v in labels.items() if k not in {"model_name", "engine"}]
                name = family["name"].removeprefix("tokenspeed:") + ending
                found[f"{name}{{{','.join(own)}}}" if own else name] = value
        return found

    return read
