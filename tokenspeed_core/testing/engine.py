# SPDX-License-Identifier: MIT
"""One rank with a scripted data plane and a real scheduler, driven round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import define, field

from tokenspeed_core.composition.build import Surroundings, build_resolved
from tokenspeed_core.composition.resolve import Resolved, resolve
from tokenspeed_core.composition.selection import Chosen
from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_core.ranks.membership import Membership
from tokenspeed_core.ranks.single import SingleRank
from tokenspeed_core.requests.finish import DecodeText
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_core.testing.invariants import Counters, check_idle, check_round, check_streams
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.scripted_frontend import ManualFrontend, ScriptedFrontend
from tokenspeed_core.testing.scripted_plane import ScriptedDataPlane
from tokenspeed_core.testing.streams import Received, Stream
from tokenspeed_hookspecs import (
    AbortRequests,
    CacheOperationKind,
    Message,
    SchedulerDriver,
    Tokenizer,
)

QUIET_ROUNDS = 3  # an id kept back for its predecessor reaches the scheduler within two
MAX_ROUNDS = 20_000
STORE_WAIT_S = 0.0005


class Tiers(Enum):
    """What the cache has besides its device pages."""

    DEVICE_ONLY = ()
    FORCED_RETRACTION = (
        ("snapshot_pages", 65),
        ("max_retracted", 8),
        ("force_retraction_every", 3),
    )
    HOST = (("host_pages", 1025),)
    HOST_AND_FORCED_RETRACTION = (*FORCED_RETRACTION, *HOST)


@define(kw_only=True)
class EngineSetup:
    """What differs from the usual small engine: page 16, 512 usable pages, 256 tokens a round, 8
    requests. `scheduler` and `plane` are options by name, `tables` those of plugins; `without`
    names built-in plugins to leave out; `resolved` is what the plugins are, if it is known."""

    depth: int = 1
    tiers: Tiers = Tiers.DEVICE_ONLY
    scheduler: Mapping[str, Any] = field(factory=dict)
    plane: Mapping[str, Any] = field(factory=dict)
    plugins: tuple[Chosen, ...] = ()
    resolved: Resolved | None = None
    decode_text: DecodeText | None = None
    tokenizer: Tokenizer | None = None
    without: tuple[str, ...] = ("batch_log", "finish_line")
    tables: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    stream_interval: int = 1
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    on_parts: Sequence[Callable[[LoopParts], None]] = ()
    record: str | None = None
    frontend: ManualFrontend | ScriptedFrontend = field(factory=ManualFrontend)
    ranks: Membership = field(factory=SingleRank)

    def config(self) -> EngineConfig:
        """The engine's configuration."""
        options = {
            "page_size": 16,
            "num_pages": 513,
            "max_batch_size": 8,
            "max_scheduled_tokens": 256,
            **dict(self.tiers.value),
            **self.scheduler,
        }
        return EngineConfig(
            engine=EngineSection(
                data_plane="scripted",
                depth=self.depth,
                stream_interval=self.stream_interval,
                record=self.record,
            ),
            scheduler=SchedulerSection(**options),
            without=self.without,
            tables=self.tables,
            data_plane={"checked_pages": True, "recorded_batches": 100_000, **self.plane},
        )


class EngineFixture:
    """A rank with everything it is made of in reach; the invariants are checked after each round.

    `frontend` takes messages, `received` has what came back, `plane` says what the device saw.
    """

    def __init__(self, setup: EngineSetup | None = None) -> None:
        self.setup = setup or EngineSetup()
        self.frontend = self.setup.frontend
        config = self.setup.config()
        self.rank = build_resolved(
            config,
            self.setup.resolved or resolve(config, self.setup.plugins),
            surroundings=Surroundings(
                frontend=self.frontend if self.setup.ranks.replica.index == 0 else None,
                ranks=self.setup.ranks,
                decode_text=self.setup.decode_text,
                tokenizer=self.setup.tokenizer,
                clock=self.setup.clock,
                sleep=self.setup.sleep,
                on_parts=self.setup.on_parts,
                make_data_plane=ScriptedDataPlane,
                make_scheduler=NativeScheduler,
            ),
        )
        self.loop = self.rank.loop
        assert isinstance(self.rank.data_plane, ScriptedDataPlane)
        self.plane = self.rank.data_plane
        self.rank.start()
        self.start_counters = Counters.of(self.loop.scheduler)

    @property
    def scheduler(self) -> SchedulerDriver:
        """The rank's scheduler driver."""
        return self.loop.scheduler

    @property
    def received(self) -> Received:
        """Everything the engine sent."""
        return self.frontend.received

    def put(self, *messages: Message) -> None:
        """Leave messages for the next round."""
        assert isinstance(self.frontend, ManualFrontend), "a scripted frontend has its messages"
        self.frontend.put(*messages)

    def add(self, request_id: str, prompt: int | Sequence[int], **more: Any) -> None:
        """Leave a request for the next round; see `request` for the arguments."""
        self.put(request(request_id, prompt, **more))

    def abort(self, *request_ids: str) -> None:
        """Leave an abort for the next round."""
        self.put(AbortRequests(request_ids))

    def round(self) -> bool:
        """Run one round and check it; returns whether the engine stops."""
        is_over = self.loop.round()
        check_round(self.loop, self.plane)
        return is_over

    def rounds(self, count: int) -> None:
        """Run so many rounds."""
        for _ in range(count):
            self.round()

    def run_until(self, condition: Callable[[], object], *, max_rounds: int = MAX_ROUNDS) -> int:
        """Run rounds until the condition holds; returns how many. AssertionError past the limit."""
        for count in range(max_rounds):
            if condition():
                return count
            self.round()
            self.rest()
        raise AssertionError(
            f"still waiting after {max_rounds} rounds: registered {self.loop.requests.ids()}, "
            f"scheduler {self.scheduler.sizes}"
        )

    def run_to_end(self, *request_ids: str) -> list[Stream]:
        """Run until each of these ended; returns their streams."""
        self.run_until(lambda: all(self.received[name].finish for name in request_ids))
        return [self.received[name] for name in request_ids]

    def to_idle(self) -> None:
        """Run until nothing is left, then check that everything is back at its start."""
        quiet = 0
        while quiet < QUIET_ROUNDS:
            self.run_until(lambda: self.is_quiet)
            self.round()
            quiet = quiet + 1 if self.is_quiet else 0
        self.check_idle()

    def check_idle(self) -> None:
        """Check that everything is back at its start, and that every stream ended once."""
        check_idle(self.loop, self.plane, start=self.start_counters)
        if isinstance(self.frontend, ManualFrontend):
            check_streams(self.received, self.frontend)

    def count(self, kind: CacheOperationKind) -> int:
        """How many cache operations of a kind the device ran."""
        return self.plane.operations[kind]

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left to do, as far as this rank knows."""
        loop = self.loop
        is_busy = len(loop.requests) or loop.in_flight or loop.ledger.num_open
        is_pending = self.scheduler.has_work or self.scheduler.storage_pending
        return not (is_busy or is_pending or self.frontend.has_pending)

    def rest(self) -> None:
        """Leave a store's threads the processor, if anything waits for them."""
        if self.scheduler.storage_pending:
            time.sleep(STORE_WAIT_S)


def scripted_engine(
    *,
    depth: int = 1,
    tiers: Tiers = Tiers.DEVICE_ONLY,
    scheduler: Mapping[str, Any] | None = None,
    plane: Mapping[str, Any] | None = None,
    frontend: ManualFrontend | ScriptedFrontend | None = None,
) -> EngineFixture:
    """The usual small engine; `EngineSetup` has the rest of what may differ."""
    return EngineFixture(
        EngineSetup(
            depth=depth,
            tiers=tiers,
            scheduler=scheduler or {},
            plane=plane or {},
            frontend=frontend or ManualFrontend(),
        )
    )
