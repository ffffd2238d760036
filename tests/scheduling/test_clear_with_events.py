# SPDX-License-Identifier: MIT
"""A clear that the wheel cannot bear is refused.

With recorded cache events and a sliding window, `clear_cache` of tokenspeed-scheduler 0.1.42
succeeds while a request runs that was retracted and restored, and the next plan ends the process
(`std::terminate`). Without the window, or without events, the same clear is fine.
"""

from __future__ import annotations

import pytest

from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.testing import EngineFixture, EngineSetup, telling_tokens
from tokenspeed_core.testing.simulation.plugin import Simulated
from tokenspeed_hookspecs import ControlRequest

SCHEDULER = {
    "max_batch_size": 1,
    "max_scheduled_tokens": 8,
    "snapshot_pages": 65,
    "max_retracted": 8,
    "force_retraction_every": 3,
}


def _engine(*, window: int | None) -> EngineFixture:
    return EngineFixture(
        EngineSetup(
            depth=0,
            scheduler=SCHEDULER,
            plane={"sliding_window": window},
            plugins=(PluginChoice(Simulated, {"events": True}),),
        )
    )


@pytest.mark.parametrize("number", [8, 11, 20])
def test_a_flush_beside_a_restored_request_is_refused(number: int) -> None:
    """The request runs on to its end, the operator is told, and a flush afterwards succeeds."""
    engine = _engine(window=24)
    engine.add("a", 20, budget=28)
    engine.rounds(number)
    engine.put(ControlRequest("flush_cache"))
    (stream,) = engine.run_to_end("a")
    assert stream.tokens == telling_tokens(28)
    engine.to_idle()
    engine.put(ControlRequest("flush_cache"))
    engine.round()
    assert [reply.success for reply in engine.received.replies] == [False, True]


def test_without_a_window_the_flush_succeeds() -> None:
    """The refusal is for the one combination alone."""
    engine = _engine(window=None)
    engine.add("a", 20, budget=28)
    engine.rounds(8)
    engine.put(ControlRequest("flush_cache"))
    engine.round()
    assert [reply.success for reply in engine.received.replies] == [True]
