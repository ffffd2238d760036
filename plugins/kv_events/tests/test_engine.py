# SPDX-License-Identifier: MIT
"""An engine that publishes, read by somebody who subscribed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing import EngineFixture, EngineSetup, Tiers
from tokenspeed_hookspecs import ControlRequest

FLUSH = ControlRequest("flush_cache")


def run(engine: EngineFixture, name: str, prompt: int | Sequence[int], **more: Any) -> None:
    """One request, from its arrival to an idle engine."""
    engine.add(name, prompt, **more)
    engine.run_to_end(name)
    engine.rounds(3)


def kinds(batches: list[tuple[int, Any]]) -> list[str]:
    """The events' kinds, in order."""
    return [event[0] for _, (_, events, _) in batches for event in events]


def test_a_prompt_is_a_chain_of_blocks(site: Any) -> None:
    """The first batch clears what a reader had; then each block names the one before it."""
    engine = site.engine()
    reader = site.reader()
    run(engine, "a", 40, budget=2)
    (zero, cleared), (one, (_, events, rank)) = reader.receive(2)
    assert (zero, cleared[1], one, rank) == (0, [["AllBlocksCleared"]], 1, 0)
    parents = [event[2] for event in events]
    assert parents == [None, *(event[1][0] for event in events[:-1])]
    assert [event[3] for event in events] == [list(range(1, 17)), list(range(17, 33))]


def test_a_repeated_prompt_stores_nothing(site: Any) -> None:
    """What is cached already is not told again."""
    engine = site.engine()
    reader = site.reader()
    for name in "abc":
        run(engine, name, 40, budget=2)
    run(engine, "d", 60, budget=2)
    (_, _, (number, (_, events, _))) = reader.receive(3)
    assert (number, [event[3][0] for event in events]) == (2, [33])


def test_a_thousand_look_ups_clear_nothing_and_a_flush_clears_once(site: Any) -> None:
    """Readers are told to forget when the cache was emptied, and only then."""
    engine = site.engine()
    reader = site.reader()
    run(engine, "first", 33, budget=1)
    engine.frontend.put(FLUSH)
    for number in range(1000):
        engine.add(f"r{number}", 33, budget=1)
    engine.run_to_end(*(f"r{number}" for number in range(1000)))
    engine.put(FLUSH)
    engine.rounds(2)
    engine.put(FLUSH)  # there is nothing left to clear
    engine.rounds(2)
    site.engines.pop().rank.stop()
    batches = []
    while reader.sub.poll(200):
        batches += reader.receive()
    assert kinds(batches).count("AllBlocksCleared") == 3
    assert kinds(batches)[-1] == "AllBlocksCleared"
    assert "BlockRemoved" not in kinds(batches)


def test_an_eviction_is_a_removal(site: Any) -> None:
    """A pool that cannot hold two prompts tells which blocks of the first are gone."""
    engine = site.engine(EngineSetup(scheduler={"num_pages": 8}))
    reader = site.reader()
    run(engine, "a", 80, budget=1)
    run(engine, "b", list(range(500, 580)), budget=1)
    batches = reader.receive(3)
    stored = [e[1][0] for e in batches[1][1][1]]
    gone = [name for e in batches[2][1][1] if e[0] == "BlockRemoved" for name in e[1]]
    assert gone
    assert set(gone) <= set(stored)


@pytest.mark.parametrize("tiers", [Tiers.DEVICE_ONLY, Tiers.FORCED_RETRACTION])
def test_the_depth_changes_no_event(site: Any, tiers: Tiers) -> None:
    """Whether a forward runs ahead or not, the same blocks are stored in the same order."""
    found = []
    for depth in (0, 1):
        engine = site.engine(EngineSetup(depth=depth, tiers=tiers))
        reader = site.reader()
        for name in "abc":
            run(engine, name, [*range(40), *name.encode()], budget=20)
        site.engines.pop().rank.stop()
        events = []
        while reader.sub.poll(200):
            events += reader.receive()[0][1][1]
        found.append(events)
    assert len(found[0]) > 3
    assert found[0] == found[1]


def test_nothing_is_lost_at_the_end(site: Any) -> None:
    """What the last rounds stored is published before the engine is gone."""
    engine = site.engine()
    reader = site.reader()
    for number in range(20):
        engine.add(f"r{number}", [number * 100 + at for at in range(40)], budget=1)
    engine.run_to_end(*(f"r{number}" for number in range(20)))
    engine.rounds(2)
    site.engines.pop().rank.stop()
    stored = 0
    while reader.sub.poll(200):
        stored += kinds(reader.receive()).count("BlockStored")
    assert stored == 40


def test_an_address_in_use_ends_the_start(site: Any) -> None:
    """Two engines with one address: the second names it, and how to name another."""
    site.engine(endpoint="tcp://127.0.0.1:15557")
    with pytest.raises(CompositionError, match=r"127\.0\.0\.1:15557.*kv_events\.endpoint"):
        site.engine(endpoint="tcp://127.0.0.1:15557")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endpoint": "udp://x"}, "kv_events.endpoint: expected tcp://HOST:PORT"),
        ({"replay_endpoint": "tcp://*:0"}, "kv_events.replay_endpoint: expected a port"),
        ({"publisher": "zqm"}, "kv_events.publisher: expected one of log, null, zmq, got 'zqm'"),
        ({"config": "{"}, "kv_events.config: expected JSON"),
        ({"config": '{"port": 1}'}, "expected an object with keys of enable_kv_cache_events"),
    ],
)
def test_wrong_options_are_told_before_the_start(
    site: Any, options: dict[str, str], text: str
) -> None:
    """Each says which option it is and what was expected."""
    with pytest.raises(CompositionError) as caught:
        site.engine(**options)
    assert text in str(caught.value)


def test_vllms_json_is_taken_as_a_whole(site: Any) -> None:
    """Its keys replace ours, and its switch can be off."""
    on = site.engine(config='{"enable_kv_cache_events": true, "topic": "kv", "buffer_steps": 5}')
    assert on.rank.announced()["kv_events"]["topic"] == "kv"
    off = site.engine(config='{"enable_kv_cache_events": false}')
    run(off, "a", 40)
    assert off.rank.announced() == {"kv_events": {"enable_kv_cache_events": False}}
    assert off.scheduler.drain_events() == ()


def test_a_gateway_is_told_where_events_are(site: Any) -> None:
    """What the engine announces has every key that a gateway's reader needs."""
    engine = site.engine(topic="kv@{model}", buffer_steps=7)
    told = engine.rank.announced()["kv_events"]
    assert told == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        **site.addresses,
        "buffer_steps": 7,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": f"kv@{engine.rank.engine.model.name}",
    }


def test_the_log_names_kinds_and_no_token(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The publisher `log` writes a line a batch."""
    with caplog.at_level(logging.INFO):
        engine = site.engine(publisher="log")
        run(engine, "a", 40, budget=1)
        site.engines.pop().rank.stop()
    lines = [line for line in caplog.messages if line.startswith("kv events")]
    assert lines == ["kv events 0: 1 AllBlocksCleared", "kv events 1: 2 BlockStored"]
