# SPDX-License-Identifier: MIT
"""Where batches go, by entry point: the group is `tokenspeed.kv_events.publishers`.

An entry point is called as `make(settings)` and returns a `Publisher`. It is made before the first
round, so that what cannot work, such as an address in use, ends the start. Every method is then
called on one thread of its own, which may wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Protocol

from attrs import frozen

from tokenspeed_kv_events.events import Event

GROUP = "tokenspeed.kv_events.publishers"


@frozen
class Batch:
    """The net change of one round: `sequence` counts from 0, and a gap in it is a lost batch."""

    sequence: int
    events: Sequence[Event]
    payload: bytes


class Publisher(Protocol):
    """Sends batches. What it raises is logged; too many failures in a row switch it off."""

    def publish(self, batch: Batch) -> None:
        """Send a batch."""
        ...

    def attend(self) -> bool:
        """Do a little of what readers asked for; whether there is more. Called between batches, and
        often while there are none."""
        ...

    def close(self) -> None:
        """Close everything; nothing is published any more."""
        ...


@frozen(kw_only=True)
class PublisherSettings:
    """What a publisher is made with; `dp_rank` moves the endpoints of one of several engines."""

    endpoint: str
    replay_endpoint: str | None
    bind: bool
    topic: str
    buffer_steps: int
    hwm: int
    dp_rank: int
    log: logging.Logger
    count_replay: Callable[[], None]


def unknown_publisher(name: str) -> list[str]:
    """A sentence if no installed package has a publisher of that name."""
    known = sorted(point.name for point in entry_points(group=GROUP))
    if name in known:
        return []
    return [f"kv_events.publisher: expected one of {', '.join(known)}, got {name!r}"]


def make_publisher(name: str, settings: PublisherSettings) -> Publisher:
    """Make the publisher of that name."""
    (point,) = entry_points(group=GROUP, name=name)
    make: Callable[[PublisherSettings], Publisher] = point.load()
    return make(settings)
