# SPDX-License-Identifier: MIT
"""The engine fixture: it drives, and its checks find what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenspeed_core.testing import (
    EngineFixture,
    ScriptedFrontend,
    Tiers,
    request,
    scripted_engine,
    telling_tokens,
)
from tokenspeed_hookspecs import CacheOperationKind, OutputBatch


def _engine_after_a_request() -> EngineFixture:
    engine = scripted_engine(tiers=Tiers.HOST)
    engine.add("r1", 40, budget=5)
    engine.run_to_end("r1")
    return engine


def test_a_clean_engine_goes_idle() -> None:
    """After traffic the idle check passes, and the fixture can serve on."""
    engine = _engine_after_a_request()
    engine.to_idle()
    engine.add("r2", 40, budget=5)
    (stream,) = engine.run_to_end("r2")
    assert stream.tokens == telling_tokens(5)
    engine.to_idle()


def test_a_stuck_engine_is_reported_with_what_it_waits_for() -> None:
    """Running out of rounds names the requests that are still registered."""
    engine = scripted_engine()
    engine.loop.controls.pause("keep")
    engine.add("r1", 5, budget=5)
    with pytest.raises(AssertionError, match=r"still waiting after 20 rounds: registered \['r1'\]"):
        engine.run_until(lambda: engine.received["r1"].finish, max_rounds=20)


def test_a_request_the_data_plane_forgot_is_found() -> None:
    """A release behind the loop's back fails in the next forward that names the request."""
    engine = scripted_engine()
    engine.add("r1", 5, budget=50)
    engine.rounds(3)
    engine.plane.release(["r1"])
    with pytest.raises((AssertionError, KeyError)):
        engine.rounds(3)


def test_a_request_that_is_never_released_is_found() -> None:
    """An ended request the data plane was not told of is found after its round."""
    engine = scripted_engine()
    engine.add("r1", 5, budget=50)
    engine.rounds(2)

    def forget(request_ids: Sequence[str]) -> None:
        """A plane that ignores releases."""

    object.__setattr__(engine.plane, "release", forget)
    engine.abort("r1")
    with pytest.raises(AssertionError, match="the data plane knows 1 requests, the loop 0"):
        engine.rounds(3)


def test_an_unacknowledged_operation_keeps_the_engine_busy() -> None:
    """Write-backs whose acknowledgments never come are open for ever."""
    engine = scripted_engine(tiers=Tiers.HOST)
    object.__setattr__(engine.plane, "poll_cache_operations", list)
    engine.add("r1", 40, budget=5)
    engine.run_to_end("r1")
    assert engine.count(CacheOperationKind.WRITE_BACK) > 0
    with pytest.raises(AssertionError, match="still waiting"):
        engine.run_until(lambda: not engine.loop.ledger.num_open, max_rounds=50)


def test_a_chunk_after_the_end_is_found() -> None:
    """A request that is sent another chunk after its end fails the idle check."""
    engine = _engine_after_a_request()
    engine.received.take(OutputBatch(["r1"], [7], [1], [40], [6], [0], {}))
    with pytest.raises(AssertionError, match="'r1' was sent 1 times"):
        engine.to_idle()


def test_a_scripted_frontend_takes_no_messages() -> None:
    """Messages cannot be put into an engine whose script has them already."""
    engine = scripted_engine(frontend=ScriptedFrontend([[request("r1", 5, budget=1)]]))
    with pytest.raises(AssertionError, match="has its messages"):
        engine.add("r2", 5, budget=1)
