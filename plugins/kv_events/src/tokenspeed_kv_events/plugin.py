# SPDX-License-Identifier: MIT
"""The plugin: what the scheduler records of its prefix cache goes to routers, once a round.

Every rank of a replica records, because their schedulers must stay alike; the first one publishes.
Nothing that fails here reaches a request: the loop leaves its events in a queue and goes on.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from tokenspeed_hookspecs import Engine, Plugin, Round, SchedulerSettings, hookimpl
from tokenspeed_kv_events.endpoints import rank_endpoint
from tokenspeed_kv_events.events import Encoder
from tokenspeed_kv_events.feed import Feed, Worker
from tokenspeed_kv_events.options import KEYS, SWITCH, EventOptions
from tokenspeed_kv_events.publishers import (
    PublisherSettings,
    make_publisher,
    unknown_publisher,
)
from tokenspeed_kv_events.translation import Translation


class KvEvents(Plugin):
    """Publishes which blocks are cached; decides nothing."""

    name = "kv_events"
    Options = EventOptions

    def __init__(self, options: EventOptions, engine: Engine) -> None:
        super().__init__(options, engine)
        self._feed: Feed | None = None
        # Readers count replicas, whatever ranks each has.
        self._dp_rank = engine.ranks.rank // engine.ranks.replica.size

    # --- composition -----------------------------------------------------------------------------

    @hookimpl
    def check_config(self, config: Mapping[str, Any]) -> Sequence[str]:
        problems: list[str] = self.options.problems()
        wanted = None if problems else self.options.resolved()
        return problems if wanted is None else unknown_publisher(wanted.publisher)

    @hookimpl
    def configure_scheduler(self, settings: SchedulerSettings) -> None:
        if self.options.resolved() is not None:
            settings.native_options["enable_kv_cache_events"] = True

    @hookimpl
    def start(self) -> None:
        options = self.options.resolved()
        if options is None or self.engine.ranks.replica.index:
            return
        self._feed = self._make_feed(options)
        self._feed.start()

    @hookimpl
    def announce(self) -> Mapping[str, object]:
        options = self.options.resolved()
        if options is None:
            return {SWITCH: False}
        told = {key: getattr(options, key) for key in KEYS}
        for key in ("endpoint", "replay_endpoint"):
            if told[key] is not None:
                told[key] = rank_endpoint(told[key], self._dp_rank)
        return {SWITCH: True, **told, "topic": self._topic(options)}

    @hookimpl
    def stop(self) -> None:
        if self._feed is not None:
            self._feed.stop()
            self._feed = None

    # --- rounds ----------------------------------------------------------------------------------

    @hookimpl
    def scheduler_events(self, round: Round) -> None:
        if round.scheduler_events and self._feed is not None:
            self._feed.put(round.scheduler_events)

    # ---------------------------------------------------------------------------------------------

    def _make_feed(self, options: EventOptions) -> Feed:
        instruments, log = self.engine.instruments, self.engine.log
        replays = instruments.counter("kv_event_replays", "Replays that readers asked for.")
        publisher = make_publisher(
            options.publisher,
            PublisherSettings(
                endpoint=options.endpoint,
                replay_endpoint=options.replay_endpoint,
                bind=options.bind,
                topic=self._topic(options),
                buffer_steps=options.buffer_steps,
                hwm=options.hwm,
                dp_rank=self._dp_rank,
                log=log,
                count_replay=replays.add,
            ),
        )
        worker = Worker(
            publisher,
            Translation(options.hash_encoding, keep_partial=options.partial_blocks),
            encoder=Encoder(options.encoding, self._dp_rank),
            log=log,
            instruments=instruments,
        )
        lost = instruments.counter("kv_event_drops", "Batches lost because the queue was full.")
        return Feed(worker, max_size=options.max_queue_size, lost=lost)

    def _topic(self, options: EventOptions) -> str:
        names = {"{host}": socket.gethostname(), "{model}": self.engine.model.name}
        topic: str = options.topic
        for mark, name in names.items():
            topic = topic.replace(mark, name)
        return topic
