# SPDX-License-Identifier: MIT
"""What an engine says of itself, and who may answer under its names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing import EngineFixture, EngineSetup
from tokenspeed_hookspecs import ControlOperation, ControlReply, ControlRequest, Plugin, hookimpl


def described(engine: EngineFixture) -> dict[str, Any]:
    """The values of a `describe`, as a program would read them."""
    engine.put(ControlRequest("describe"))
    engine.round()
    return cast("dict[str, Any]", json.loads(json.dumps(engine.received.replies[-1].values)))


def test_it_names_the_model_the_plugins_and_each_hooks_order() -> None:
    """The composition is that of `tokenspeed plugins`."""
    told = described(EngineFixture(EngineSetup(without=())))
    assert told["model"]["name"] == "scripted"
    assert [each["name"] for each in told["plugins"]] == ["batch_log", "finish_line"]
    assert told["hooks"]["request_finished"] == ["finish_line"]


def test_it_counts_what_runs_and_says_the_state() -> None:
    """Sizes and the pause state are those of the round that answers."""
    engine = EngineFixture()
    engine.add("r", 5, budget=40)
    engine.rounds(3)
    engine.put(ControlRequest("pause", {"mode": "wait"}))
    told = described(engine)
    assert told["counters"]["completion_tokens"] > 0
    assert (told["sizes"]["decoding"], told["sizes"]["registered"]) == (1, 1)
    state: dict[str, object] = {
        "name": "paused",
        "draining": "pause",
        "released": [],
        "weight_version": None,
    }
    assert told["state"] == state


class Usurper(Plugin):
    """Wants to answer a pause."""

    name = "usurper"

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        return [ControlOperation("pause", lambda _: ControlReply("pause", success=True))]


def test_a_plugin_may_not_take_an_operation_of_the_core() -> None:
    """Composition names the plugin and the operation."""
    with pytest.raises(CompositionError, match="'usurper': control operation 'pause' is the core"):
        EngineFixture(EngineSetup(plugins=(Usurper,)))
