# SPDX-License-Identifier: MIT
"""Cache events, sliding windows and retraction: any two of them, never all three.

Driven as its contract says, tokenspeed-scheduler 0.1.42 with all three ends the process in
`next_execution_plan`: "Fatal check failed: cache mutation on a KV event boundary with no token
descriptor". It comes when a restored request's pages are given up, by a tight pool or by a clear.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.scheduling import configuration
from tokenspeed_core.testing import EngineFixture, EngineSetup, telling_tokens
from tokenspeed_core.testing.simulation.plugin import Simulated

TIGHT = {"max_batch_size": 1, "max_scheduled_tokens": 40, "num_pages": 16}
RETRACTION = {"snapshot_pages": 65, "max_retracted": 8, "force_retraction_every": 3}


def run(*, events: bool, window: int | None, retraction: dict[str, int]) -> EngineFixture:
    """One request that is retracted again and again in a pool that hardly holds it."""
    setup = EngineSetup(
        depth=0,
        scheduler={**TIGHT, **retraction},
        plane={"sliding_window": window},
        plugins=(PluginChoice(Simulated, {"events": events}),),
    )
    engine = EngineFixture(setup)
    engine.add("a", 87, budget=18)
    engine.run_to_end("a")
    engine.to_idle()
    return engine


def test_all_three_together_are_refused() -> None:
    """The message says which two may be had."""
    with pytest.raises(ConfigError, match="cannot record cache events of sliding windows"):
        run(events=True, window=24, retraction=RETRACTION)


@pytest.mark.parametrize(
    ("events", "window", "retraction"),
    [(False, 24, RETRACTION), (True, None, RETRACTION), (True, 24, {})],
)
def test_any_two_run(events: bool, window: int | None, retraction: dict[str, int]) -> None:
    """The same traffic ends as it should without the third."""
    engine = run(events=events, window=window, retraction=retraction)
    assert engine.received["a"].tokens == telling_tokens(18)


def test_the_wheel_still_ends_the_process() -> None:
    """Without the refusal the process is gone; when this fails, a wheel bears it."""
    script = """
import runpy
reproduction = runpy.run_path(PATH)
from tokenspeed_core.scheduling import configuration
configuration._check_together = lambda config, settings: None
reproduction["run"](events=True, window=24, retraction=reproduction["RETRACTION"])
"""
    done = subprocess.run(
        [sys.executable, "-c", f"PATH = {__file__!r}{script}"], capture_output=True, check=False
    )
    assert hasattr(configuration, "_check_together")
    assert done.returncode < 0, done.stderr
