# SPDX-License-Identifier: MIT
"""Decode steps that had to wait for somebody's prompt."""

from __future__ import annotations

import pytest
from attrs import define, field

from tokenspeed_core.requests.state import Timeline
from tokenspeed_core.testing import EngineFixture, EngineSetup
from tokenspeed_hookspecs import FinishedRequest, Plugin, Round, hookimpl


@define
class Seen:
    """What the observer below noted, by id."""

    finished: dict[str, FinishedRequest] = field(factory=dict)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_decode_beside_a_prompt_is_preempted_once_a_prompt(depth: int) -> None:
    """A request that decodes while another's prompt runs in three chunks was preempted once."""
    seen = Seen()

    class Watch(Plugin):
        """Keeps each finished request."""

        name = "watch"

        @hookimpl
        def request_finished(self, round: Round) -> None:
            assert round.finished is not None
            seen.finished[round.finished.request_id] = round.finished

    engine = EngineFixture(EngineSetup(depth=depth, plugins=(Watch,)))
    engine.add("early", 5, budget=30)
    engine.rounds(4)
    engine.add("late", 600, budget=2)
    engine.run_to_end("early", "late")
    engine.to_idle()
    assert seen.finished["early"].preemptions == 1
    assert seen.finished["early"].preempted_s > 0
    assert (seen.finished["late"].preemptions, seen.finished["late"].preempted_s) == (0, 0.0)


def test_preempted_rounds_in_a_row_are_one_preemption() -> None:
    """The count goes up where such steps begin, the time with each of them."""
    times = Timeline(0.0)
    for number in (3, 4, 5, 9, 10):
        times.note_preemption(number, 0.5)
    assert (times.preemptions, times.preempted_s) == (2, 2.5)
