# SPDX-License-Identifier: MIT
"""What must hold after every round, and what must be back at its start once nothing is left."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_core.testing.scripted_frontend import ManualFrontend
from tokenspeed_core.testing.scripted_plane import ScriptedDataPlane
from tokenspeed_core.testing.streams import Received, Stream
from tokenspeed_hookspecs import SchedulerDriver

_GAUGES = ("snapshot_pool_free_blocks", "host_pool_pinned_blocks", "active_lcm_blocks")


@frozen
class Counters:
    """What an idle engine holds; `gauges` are the native scheduler's own."""

    active_pages: int
    total_pages: int
    gauges: dict[str, int]

    @classmethod
    def of(cls, scheduler: SchedulerDriver) -> Counters:
        """Read a scheduler's counters."""
        native: Any = scheduler.native  # the one place that looks behind the driver
        found = {name: getattr(native, name)() for name in _GAUGES if hasattr(native, name)}
        sizes = scheduler.sizes
        return cls(sizes.active_pages, sizes.total_pages, found)


def check_round(loop: EventLoop, plane: ScriptedDataPlane) -> None:
    """Pages add up, and the ledgers of loop, scheduler and data plane agree."""
    sizes = loop.scheduler.sizes
    counts = (sizes.waiting, sizes.prefilling, sizes.decoding, sizes.retracted)
    assert min(counts) >= 0, f"a scheduler count is below zero: {sizes}"
    cached = sizes.total_pages - sizes.active_pages - sizes.empty_pages
    assert min(cached, sizes.active_pages, sizes.empty_pages) >= 0, f"pages do not add up: {sizes}"
    assert plane.num_admitted == len(loop.requests), (
        f"the data plane knows {plane.num_admitted} requests, the loop {len(loop.requests)}"
    )
    for flight in loop.in_flight:
        slots = flight.batch.slots.tolist()
        assert len(set(slots)) == len(slots), f"two rows of one forward share a slot: {slots}"
        assert min(slots, default=1) > 0, f"a row has slot 0, which nobody may have: {slots}"


def check_streams(received: Received, frontend: ManualFrontend) -> None:
    """Every request ended at most once, and no chunk came after an end."""
    for request_id in received.ids():
        streams, sent = received.all_of(request_id), frontend.sent[request_id]
        assert len(streams) <= sent, f"{request_id!r} was sent {sent} times: {streams}"
        for stream in streams:
            check_stream(stream)


def check_stream(stream: Stream) -> None:
    """The totals grow with the chunks, and only the last chunk ends the request."""
    total = 0
    for chunk in stream.chunks:
        total += len(chunk.tokens)
        assert chunk.completion_tokens == total, f"{stream.request_id!r}: {stream.chunks}"
    ends = [chunk.finish for chunk in stream.chunks[:-1] if chunk.finish is not None]
    assert not ends, f"{stream.request_id!r} went on after its end: {stream.chunks}"


def check_idle(loop: EventLoop, plane: ScriptedDataPlane, *, start: Counters) -> None:
    """Nothing is held any more: tables empty, counters as at the start, the cache clearable."""
    assert len(loop.requests) == 0, f"still registered: {loop.requests.ids()}"
    assert not loop.in_flight, "forwards are still in flight"
    assert loop.ledger.num_open == 0, "cache operations are still open"
    assert plane.num_admitted == 0, "the data plane still knows requests"
    now = Counters.of(loop.scheduler)
    assert now == start, f"idle counters differ from the start: {now}, at the start {start}"
    assert loop.scheduler.can_clear_cache(), "the cache is still pinned"
    assert loop.scheduler.clear_cache(), "the cache was not cleared"
    sizes = loop.scheduler.sizes
    assert sizes.empty_pages == sizes.total_pages, f"pages are lost: {sizes}"
