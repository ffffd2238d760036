# SPDX-License-Identifier: MIT
"""Which events the wheel is given for the rows of a forward, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed_core.scheduling.native_events import EventQueue
from tokenspeed_hookspecs import CommitOutcome


class Recorded:
    """Stands where the wheel's bundle of events stands; writes down what is added."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def add_event(self, event: Any) -> None:
        """Write an event down, as the real one copies it."""
        tokens = "".join(f" {token}" for token in getattr(event, "tokens", ()))
        self.events.append(f"{type(event).__name__} {event.request_id}{tokens}")


class Recorder:
    """A wheel of bundles that can be read."""

    ExecutionEvent = Recorded


def answered(loop: Any, outcome: CommitOutcome) -> list[str]:
    """What committing the outcome of the next plan queues."""
    batch = loop.driver.plan().batch
    queue = loop.driver._answering.queue = EventQueue(Recorder)
    loop.driver.commit(batch, outcome)
    return [event for bundle in queue.take() for event in bundle.events]


@pytest.fixture
def decoding(rounds: Any) -> Any:
    """A loop whose next batch decodes requests a, b and c."""
    loop = rounds()
    for name in "abc":
        loop.submit(name, budget=50)
    loop.round()
    return loop


def test_prompt_rows_reserve_nothing(rounds: Any) -> None:
    """The last chunk of a prompt is answered by its result alone."""
    loop = rounds()
    loop.submit("a")
    assert answered(loop, CommitOutcome([7])) == ["ExtendResult a 7"]


def test_decode_rows_that_go_on_reserve(decoding: Any) -> None:
    """Each decode row gets its result, and behind it a reserve."""
    assert answered(decoding, CommitOutcome([7, 8, 9])) == [
        *(f"ExtendResult {name} {token}" for name, token in zip("abc", (7, 8, 9), strict=True)),
        *(f"UpdateReserveNumTokens {name}" for name in "abc"),
    ]


def test_ends_follow_the_result(decoding: Any) -> None:
    """A row that ends has its end where others reserve."""
    outcome = CommitOutcome([7, -1, 9], finished=[0], aborted=[1])
    assert answered(decoding, outcome) == [
        "ExtendResult a 7",
        "Finish a",
        "ExtendResult b",
        "Abort b",
        "ExtendResult c 9",
        "UpdateReserveNumTokens c",
    ]


def test_a_row_without_a_token_reserves_nothing(decoding: Any) -> None:
    """An empty answer is the whole answer."""
    assert answered(decoding, CommitOutcome([-1, 8, 9]))[:2] == [
        "ExtendResult a",
        "ExtendResult b 8",
    ]


def test_several_tokens(decoding: Any) -> None:
    """A row with several tokens is answered with all of them."""
    outcome = CommitOutcome([7, 8, 9], more={1: [8, 5, 6]})
    assert answered(decoding, outcome)[2:4] == ["ExtendResult b 8 5 6", "UpdateReserveNumTokens b"]


def test_bundles_keep_their_order() -> None:
    """What is queued behind a kept bundle does not overtake it."""
    queue = EventQueue(Recorder)
    events = [type("Event", (), {"request_id": name}) for name in "abc"]
    queue.add(events[:1])
    queue.add_bundle(queue.bundle(events[1:2]))
    queue.add(events[2:])
    assert [bundle.events for bundle in queue.take()] == [["type a"], ["type b"], ["type c"]]
    assert queue.take() == ()
