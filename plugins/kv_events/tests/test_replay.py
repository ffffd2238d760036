# SPDX-License-Identifier: MIT
"""What a reader that missed batches can ask for."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tokenspeed_core.testing import EngineFixture


def stored(engine: EngineFixture, count: int) -> None:
    """So many batches: a block each, in rounds of their own."""
    for number in range(count):
        name = f"s{number}"
        engine.add(name, [number * 20 + at for at in range(16)], budget=1)
        engine.run_to_end(name)
        engine.rounds(2)


@pytest.mark.parametrize(("start", "expected"), [(0, [0, 1, 2, 3]), (2, [2, 3]), (9, [])])
def test_a_replay_begins_where_it_is_asked_to(site: Any, start: int, expected: list[int]) -> None:
    """From the first, from the middle, from the future: what is there, and an end."""
    engine = site.engine()
    reader = site.reader()
    stored(engine, 3)
    live = reader.receive(4)
    assert reader.replay(start) == [live[number] for number in expected]


def test_a_replay_tells_what_is_no_longer_kept(site: Any) -> None:
    """The first number that comes is above the one asked for."""
    engine = site.engine(buffer_steps=2)
    reader = site.reader()
    stored(engine, 5)
    reader.receive(6)
    assert [number for number, _ in reader.replay(0)] == [4, 5]


@pytest.mark.parametrize("frames", [[b""], [b"", b"123"], [b"x", bytes(8)], [b"", bytes(8), b""]])
def test_a_malformed_request_is_ignored(
    site: Any, frames: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the reader's next request is answered."""
    engine = site.engine()
    reader = site.reader()
    stored(engine, 1)
    reader.receive(2)
    reader.dealer.send_multipart(frames)
    assert [number for number, _ in reader.replay(0)] == [0, 1]
    assert any("ignored a replay request" in line for line in caplog.messages)


def test_a_long_replay_does_not_delay_what_is_new(site: Any) -> None:
    """It is sent a few at a time, and batches of later rounds come at its end."""
    engine = site.engine()
    reader = site.reader()
    stored(engine, 300)
    reader.dealer.send_multipart([b"", bytes(8)])
    engine.add("late", [77] * 16, budget=1)
    engine.run_to_end("late")
    engine.rounds(2)
    assert reader.receive(302)[-1][0] == 301
    assert len(reader.replay(300)) >= 2


def test_a_slow_reader_finds_its_gap_filled(site: Any) -> None:
    """What PUB did not keep for it is what the replay has."""
    engine = site.engine(hwm=1)
    reader = site.reader()
    reader.sub.rcvhwm = 1
    stored(engine, 40)
    found = reader.replay(0)
    while len(found) < 41:
        found = reader.replay(0)
    assert [number for number, _ in found] == list(range(41))


def test_a_reader_that_leaves_its_replay_is_forgotten(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one is answered as if it had never been there."""
    caplog.set_level(logging.DEBUG)
    engine = site.engine()
    stored(engine, 100)
    gone = site.reader()
    gone.dealer.send_multipart([b"", bytes(8)])
    gone.dealer.close(0)
    reader = site.reader()
    while len(reader.replay(0)) < 101:
        pass
