# SPDX-License-Identifier: MIT
"""A reader that knows only the events knows what the engine has cached.

Random traffic over small pools: evictions, flushes, retraction, a host tier, aborts, and readers
that start late. Each failure names its seed; TOKENSPEED_EVENT_SEEDS is how many there are (60).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, evolve, field

from tokenspeed_core.testing import EngineFixture, EngineSetup, ManualFrontend, Tiers
from tokenspeed_hookspecs import ControlRequest, Plugin, Round, SchedulerSettings, hookimpl
from tokenspeed_kv_events.translation import Translation

PATIENCE_MS = 1000
BATCHES, SEEDS_A_BATCH = 4, int(os.environ.get("TOKENSPEED_EVENT_SEEDS", "60")) // 4


class Recorder(Plugin):
    """Keeps what readers would be told, as decoded lists."""

    name = "recorder"

    def __init__(self, options: object, engine: Any) -> None:
        super().__init__(options, engine)
        self.translation = Translation(keep_partial=True)
        self.batches: list[list[Any]] = []

    @hookimpl
    def configure_scheduler(self, settings: SchedulerSettings) -> None:
        settings.native_options["enable_kv_cache_events"] = True

    @hookimpl
    def scheduler_events(self, round: Round) -> None:
        events = self.translation.events(round.scheduler_events)
        if events:
            self.batches.append([as_list(event) for event in events])


def as_list(event: Any) -> list[Any]:
    """An event in array form."""
    name = type(event).__name__
    return [name, *(getattr(event, each) for each in event.__struct_fields__)]


@define
class Run:
    """An engine under traffic, and a mirror that has taken `taken` of its batches."""

    engine: EngineFixture
    recorder: Recorder
    mirror: Any
    taken: int = 0
    names: int = 0
    rng: random.Random = field(factory=random.Random)

    @property
    def roots(self) -> list[list[int]]:
        """Two texts that the prompts begin with."""
        rng = random.Random(str(self.engine.setup.scheduler))
        return [[rng.randrange(50) for _ in range(90)] for _ in range(2)]

    def follow(self) -> None:
        """Bring the mirror up to the present."""
        for batch in self.recorder.batches[self.taken :]:
            self.mirror.take(batch)
        self.taken = len(self.recorder.batches)

    def traffic(self) -> None:
        """Some rounds with requests, aborts and flushes."""
        for _ in range(self.rng.randint(3, 12)):
            for _ in range(self.rng.randint(0, 2)):
                cut = self.rng.randint(0, 90)
                prompt = [*self.rng.choice(self.roots)[:cut], self.rng.randrange(100, 110)]
                self.add(prompt, budget=self.rng.randint(1, 30))
            if self.rng.random() < 0.1:
                self.engine.put(ControlRequest("flush_cache"))
            if self.names and self.rng.random() < 0.1:
                self.engine.abort(f"q{self.rng.randint(1, self.names)}")
            self.rounds(self.rng.randint(1, 5))

    def rounds(self, count: int) -> None:
        """Rounds, after each of which no block of the mirror's is without a page."""
        for _ in range(count):
            self.engine.rounds(1)
            self.follow()
            sizes = self.engine.scheduler.sizes
            assert len(self.mirror.blocks) <= sizes.total_pages - sizes.empty_pages

    def add(self, prompt: list[int], *, budget: int) -> str:
        self.names += 1
        self.engine.add(f"q{self.names}", prompt, budget=budget)
        return f"q{self.names}"

    def settle(self) -> None:
        """Run until nothing is left, without the kit's own check, which clears the cache."""
        self.engine.round()
        self.engine.run_until(lambda: not self.is_busy)
        self.engine.rounds(3)
        self.follow()

    @property
    def is_busy(self) -> bool:
        loop = self.engine.loop
        is_moving = len(loop.requests) or loop.in_flight or loop.ledger.num_open
        return bool(is_moving or self.engine.scheduler.has_work)

    def check(self) -> None:
        """Every page in use is a block of the mirror's, and a request finds what it predicts.

        A host tier gives back prefixes that the device no longer has, so more may be found.
        """
        sizes = self.engine.scheduler.sizes
        assert sizes.active_pages == 0
        assert sizes.total_pages - sizes.empty_pages == len(self.mirror.blocks)
        has_host = "HOST" in self.engine.setup.tiers.name
        for prompt in [root[: self.rng.randint(1, 90)] for root in self.roots]:
            expected = self.mirror.cached(prompt)
            name = self.add([*prompt, 1000 + self.names], budget=1)
            self.settle()
            found = self.engine.received[name].chunks[-1].cached_tokens
            assert found >= expected if has_host else found == expected, (prompt, found, expected)


@define
class Follower:
    """Reads live batches, replays what it misses, and forgets everything when it starts again."""

    reader: Any
    new_mirror: Callable[[], Any]
    mirror: Any
    next: int = 0
    num_replayed: int = 0

    def start_again(self) -> None:
        """With an empty index, from the first batch that is kept."""
        self.mirror, self.next = self.new_mirror(), 0
        self.replay()

    def replay(self) -> None:
        """Take what is kept from the next number on."""
        for number, batch in self.reader.replay(self.next):
            assert number == self.next
            self.take(batch)
            self.num_replayed += 1

    def take(self, batch: Any) -> None:
        self.mirror.take(batch[1])
        self.next += 1

    def follow(self, num_batches: int) -> None:
        """Take so many, and the engine's first, which tells of none; some are on their way."""
        while self.next <= num_batches:
            if not self.reader.sub.poll(PATIENCE_MS):
                self.replay()
                continue
            ((number, batch),) = self.reader.receive()
            if number > self.next:
                self.replay()
            elif number == self.next:
                self.take(batch)


def setup_of(rng: random.Random) -> EngineSetup:
    """A small engine of some kind."""
    tiers = rng.choice(list(Tiers))
    scheduler: dict[str, object] = {
        "num_pages": rng.choice([16, 24, 40]),
        "max_batch_size": rng.choice([1, 3, 8]),
        "max_scheduled_tokens": rng.choice([40, 256]),
    }
    if "RETRACTION" in tiers.name:
        scheduler["force_retraction_every"] = rng.choice([3, 4, 7])
    return EngineSetup(depth=rng.choice([0, 1]), tiers=tiers, scheduler=scheduler)


def run_of(seed: int, mirror: Any, *, site: Any = None) -> Run:
    """The engine of a seed, before any traffic; on a site it publishes."""
    rng = random.Random(seed)
    setup = evolve(setup_of(rng), plugins=(Recorder,), frontend=ManualFrontend())
    engine = EngineFixture(setup) if site is None else site.engine(setup, partial_blocks=True)
    plugins = [each.instance for each in engine.rank.plugins]
    (recorder,) = (each for each in plugins if isinstance(each, Recorder))
    return Run(engine, recorder, mirror, rng=rng)


def traffic_and_checks(run: Run, *, new_mirror: Any) -> None:
    """Three times: traffic, perhaps a reader that starts again from the first batch, a check."""
    for _ in range(3):
        run.traffic()
        if run.rng.random() < 0.3:
            run.mirror, run.taken = new_mirror(), 0
        run.settle()
        run.check()


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_mirror_equals_the_engines_own_index(batch: int, mirror: Any) -> None:
    """After any traffic, what the events say is cached is what requests find."""
    for seed in range(batch * SEEDS_A_BATCH, (batch + 1) * SEEDS_A_BATCH):
        run = run_of(seed, type(mirror)())
        try:
            traffic_and_checks(run, new_mirror=type(mirror))
        except BaseException as error:
            error.add_note(f"seed {seed}: {run.engine.setup}")
            raise


def test_a_reader_that_loses_batches_and_replays_them_ends_up_right(mirror: Any) -> None:
    """A gap in the numbers is filled in order before what came behind it is taken."""
    for seed in range(20):
        run = run_of(seed, type(mirror)())
        run.traffic()
        run.settle()
        kept, late, expected = run.recorder.batches, type(mirror)(), 0
        for number in range(len(kept)):
            if run.rng.random() < 0.3 and number < len(kept) - 1:
                continue  # lost; the next one that comes shows it
            for missing in kept[expected : number + 1]:
                late.take(missing)
            expected = number + 1
        assert late.blocks == run.mirror.blocks, f"seed {seed}"


def test_a_reader_that_starts_again_replays_to_what_a_steady_one_knows(
    site: Any, mirror: Any
) -> None:
    """Over the sockets: after random rounds it reads on, lags, or starts again with nothing."""
    num_replayed = 0
    for seed in range(SEEDS_A_BATCH // 2):
        run = run_of(seed, type(mirror)(), site=site)
        follower = Follower(site.reader(), type(mirror), type(mirror)())
        for _ in range(6):
            run.traffic()
            choice = run.rng.choice(["reads", "lags", "starts again"])
            if choice == "starts again":
                follower.start_again()
            if choice != "lags":
                follower.follow(len(run.recorder.batches))
        run.settle()
        follower.follow(len(run.recorder.batches))
        assert follower.mirror.blocks == run.mirror.blocks, f"seed {seed}: {run.engine.setup}"
        run.check()
        num_replayed += follower.num_replayed
        site.close()
    assert num_replayed
