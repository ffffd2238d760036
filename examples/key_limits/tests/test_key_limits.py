# SPDX-License-Identifier: MIT
"""Priorities, rates and turns, on an engine with a scripted data plane and a clock that is held."""

from __future__ import annotations

from typing import Any

import pytest
from acme_key_limits.plugin import KeyLimits
from attrs import define, evolve

from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing import EngineFixture, EngineSetup, request
from tokenspeed_hookspecs import ControlRequest


@define
class HeldClock:
    """Time that stands still until it is moved."""

    now: float = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Desk:
    """An engine with the plugin, and short ways to send."""

    def __init__(self, **options: Any) -> None:
        self.clock = HeldClock()
        chosen = PluginChoice(KeyLimits, options)
        self.engine = EngineFixture(EngineSetup(plugins=(chosen,), clock=self.clock))

    def send(self, name: str, key: object, *, budget: int = 4) -> None:
        """Send a request of a key."""
        features = {} if key is None else {"api_key": key}
        self.engine.put(evolve(request(name, 8, budget=budget), features=features))

    def ended(self) -> list[str]:
        """Ids in the order in which they ended."""
        return [name for name, _ in self.engine.plane.released]


def test_a_key_sends_at_its_rate() -> None:
    """After the burst one request goes a half second, by the engine's clock."""
    desk = Desk(keys={"free": {"per_second": 2.0, "burst": 2}})
    for name in ("a", "b", "c", "d"):
        desk.send(name, "free")
    desk.engine.rounds(20)
    assert desk.ended() == ["a", "b"]
    desk.clock.now += 0.5
    desk.engine.rounds(20)
    assert desk.ended() == ["a", "b", "c"]


def test_a_lower_priority_waits() -> None:
    """With one turn at a time the better key goes first, whatever came first."""
    desk = Desk(running=1, keys={"gold": {"priority": 0}, "free": {"priority": 9}})
    for name, key in (("f1", "free"), ("f2", "free"), ("g1", "gold"), ("g2", "gold")):
        desk.send(name, key)
    desk.engine.run_to_end("f1", "f2", "g1", "g2")
    assert desk.ended() == ["g1", "g2", "f1", "f2"]


def test_a_key_runs_its_number_at_once() -> None:
    """A second request of the key waits for the first, another key's does not."""
    desk = Desk(keys={"free": {"at_once": 1}})
    desk.send("f1", "free", budget=20)
    desk.send("f2", "free", budget=2)
    desk.send("other", None, budget=2)
    desk.engine.run_to_end("f1", "f2", "other")
    assert desk.ended() == ["other", "f1", "f2"]


def test_too_many_waiting_are_refused() -> None:
    """The message says how many wait, and the code is 429."""
    desk = Desk(keys={"free": {"per_second": 1.0, "burst": 1, "waiting": 1}})
    desk.send("a", "free")
    desk.engine.round()
    desk.send("b", "free")
    desk.send("c", "free")
    desk.engine.run_to_end("c")
    finish = desk.engine.received["c"].finish
    assert finish is not None
    assert finish.status_code == 429
    assert "1 of key 'free' wait already" in str(finish.message)


def test_an_id_that_comes_again_does_not_wait_for_itself() -> None:
    """A request with the id of one that ended is another request."""
    desk = Desk(running=1)
    for _ in range(3):
        desk.send("same", None)
        desk.engine.rounds(20)
    assert desk.ended() == ["same"] * 3


def test_the_operation_tells_who_waits() -> None:
    """An operator sees each key's limits and its queue."""
    desk = Desk(keys={"free": {"per_second": 0.1, "burst": 1}})
    for name in ("a", "b", "c"):
        desk.send(name, "free")
    desk.engine.rounds(10)
    desk.engine.put(ControlRequest("key_limits"))
    desk.engine.run_until(lambda: desk.engine.received.replies)
    (reply,) = desk.engine.received.replies
    keys: Any = reply.values["keys"]
    assert keys["free"]["waiting_now"] == 2


def test_wrong_limits_are_refused() -> None:
    """A limit below zero ends composition, with the key's name."""
    with pytest.raises(CompositionError, match=r"key_limits\.keys\.free: expected numbers from 0"):
        Desk(keys={"free": {"burst": -1}})
