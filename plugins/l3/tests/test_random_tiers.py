# SPDX-License-Identifier: MIT
"""Random workloads say the same with every tier on, over restarts, as with all of them off.

Pools so small that pages are evicted and requests retracted all the time; one rank or several.
Every seed makes the same workload and engines again. As a script it runs as many seeds as asked
for, with a tiny model or with the default one:

    python plugins/l3/tests/test_random_tiers.py 300 --store "redis://127.0.0.1:6379/0?prefix={seed}"
    python plugins/l3/tests/test_random_tiers.py 300 --model smollm2-135m
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attrs import evolve, field, frozen
from rich.console import Console

from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.streams import Stream
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.testing.torch_engine import TorchSetup
from tokenspeed_core.testing.torch_world import TorchWorld
from tokenspeed_hookspecs import AddRequest

LIMIT_S = 60.0
TEXT = Path(__file__).parents[1] / "README.md"


@frozen(kw_only=True)
class Subject:
    """A model: `off` runs it without any tier, `write` makes so many tokens of a prompt, and
    `widths` are the tensor parallel sizes that seeds take turns at. Prompts have up to eight pages
    and answers more than one."""

    off: TorchSetup
    write: Callable[[random.Random, int], list[int]]
    widths: Sequence[int]
    num_requests: int
    page_size: int

    @classmethod
    def tiny(cls) -> Subject:
        """Random weights and random tokens."""
        return cls(
            off=_off(tiny_model(3)),
            write=lambda dice, count: dice.choices(range(290), k=count),
            widths=(1, 2),
            num_requests=12,
            page_size=16,
        )

    @classmethod
    def default(cls, name: str) -> Subject:
        """A real model and real text; its 9 attention heads divide by 3 and not by 2."""
        folder = resolve_model(name)
        text = folder.load_tokenizer().encode(TEXT.read_text())

        def cut(dice: random.Random, count: int) -> list[int]:
            start = dice.randrange(len(text) - count)
            return list(text[start : start + count])

        return cls(off=_off(folder), write=cut, widths=(1, 3), num_requests=8, page_size=8)


def _off(model: object) -> TorchSetup:
    return TorchSetup(model=model, engine={"threads": 1}, scheduler={"prefix_cache": False})


@frozen
class Workload:
    """What one seed makes: requests, and the engines that are asked them one after the other."""

    seed: int
    off: TorchSetup
    topology: Topology
    requests: Sequence[AddRequest]
    engines: Sequence[TorchSetup]


@frozen
class Outcome:
    """What each engine answered, in the order of the requests, and where cached tokens were."""

    tokens: list[list[list[int]]] = field(factory=list)
    cached: Counter[str] = field(factory=Counter)


def workload(seed: int, store: str, *, subject: Subject, is_patient: bool) -> Workload:
    """Prompts that begin alike and part, and three engines on one store."""
    dice, page = random.Random(seed), subject.page_size
    stems = [subject.write(dice, 7 * page) for _ in range(3)]
    requests = []
    for number in range(subject.num_requests):
        stem = dice.choice(stems)[: dice.randrange(1, 7 * page)]
        prompt = stem + subject.write(dice, dice.randrange(1, page))
        budget = dice.randrange(1, page + 4)
        requests.append(request(f"r{number}", prompt, budget=budget, temperature=0.0))
    topology = Topology(tp=subject.widths[seed % len(subject.widths)])
    options = [_options(dice, store, is_patient=is_patient) for _ in range(3)]
    engines = [_engine(dice, subject, options=each) for each in options]
    return Workload(seed, subject.off, topology, requests, engines)


def _options(dice: random.Random, store: str, *, is_patient: bool) -> dict[str, Any]:
    return {
        "store": store,
        "min_prefetch_tokens": 1,
        "max_keys_per_operation": dice.choice([2, 64]),
        "max_operations": dice.choice([2, 64]),
        "pressure_operations": 64,
        "wait_timeout_s": 60.0 if is_patient else dice.choice([0.02, 2.0, 20.0]),
    }


def _engine(dice: random.Random, subject: Subject, *, options: dict[str, Any]) -> TorchSetup:
    retracted = dice.random() < 0.5
    scheduler: dict[str, Any] = {
        "page_size": subject.page_size,
        "num_pages": dice.choice([20, 28, 60]),
        "host_pages": dice.choice([12, 40, 100]),
        "max_scheduled_tokens": dice.choice([16, 48, 256]),
        "max_batch_size": dice.choice([2, 4, 8]),
    }
    if retracted:
        scheduler |= {"snapshot_pages": 33, "max_retracted": 8, "force_retraction_every": 3}
    return evolve(
        subject.off,
        depth=dice.choice([0, 1]),
        scheduler=scheduler,
        plugins=("l3",),
        tables={"l3": options},
    )


def answers(work: Workload, setup: TorchSetup, *, turn: int) -> list[Stream]:
    """What an engine answers; it ends with everything stored that it wanted to store."""
    with TorchWorld(work.topology, setup) as world:
        order = list(work.requests)
        random.Random(f"{work.seed}-{turn}").shuffle(order)
        renamed = [evolve(each, request_id=f"{each.request_id}-{turn}") for each in order]
        found = world.generate(renamed)
        _settle(world)
    by_name = {each.request_id: stream for each, stream in zip(order, found, strict=True)}
    return [by_name[each.request_id] for each in work.requests]


def _settle(world: TorchWorld) -> None:
    """Let write-backs and what follows them end."""
    quiet, limit = 0, time.monotonic() + LIMIT_S
    while quiet < 5:
        world.round()
        loop = world.ranks[0].loop
        quiet = 0 if loop.scheduler.storage_pending or loop.ledger.num_open else quiet + 1
        assert time.monotonic() < limit, "operations of the store never end"


def run(work: Workload) -> Outcome:
    """Run every engine; the first of the answers has no tier at all."""
    outcome = Outcome()
    for turn, setup in enumerate([work.off, *work.engines]):
        found = answers(work, setup, turn=turn)
        outcome.tokens.append([stream.tokens for stream in found])
        for stream in found:
            last = stream.chunks[-1]
            tiers = (last.details and last.details.cached_by_tier) or {"device": last.cached_tokens}
            outcome.cached.update(tiers)
    return outcome


def check(seed: int, store: str, *, subject: Subject, is_patient: bool = False) -> Counter[str]:
    """Run a seed; AssertionError says where tokens differ, else cached tokens by tier."""
    work = workload(seed, store, subject=subject, is_patient=is_patient)
    outcome = run(work)
    for turn, tokens in enumerate(outcome.tokens[1:]):
        setup = work.engines[turn]
        told = f"seed {seed}, engine {turn}, {work.topology}: {setup.scheduler} {setup.tables}"
        assert tokens == outcome.tokens[0], told
    return outcome.cached


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_tokens_are_those_of_an_engine_without_tiers(kind: str, seed: int, tmp_path: Path) -> None:
    """After restarts on a store with one rank and with two; and something did come from it."""
    store = f"file:{tmp_path}" if kind == "file" else f"memory:random-{seed}"
    assert check(seed, store, subject=Subject.tiny(), is_patient=True)["storage"]


def main(arguments: Sequence[str]) -> int:
    """Run seeds and print what was cached where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--store", help="a store's address; {seed} is the seed (a new folder each)")
    parser.add_argument("--model", help="a default model's name (a tiny one)")
    given = parser.parse_args(arguments)
    subject = Subject.default(given.model) if given.model else Subject.tiny()
    total, console = Counter[str](), Console()
    for seed in range(given.first, given.first + given.seeds):
        with TemporaryDirectory(prefix="tiers-") as folder:
            store = (given.store or "file:" + folder).format(seed=seed)
            cached = check(seed, store, subject=subject)
        total += cached
        console.print(f"seed {seed}: {dict(cached)}")
    console.print(f"{given.seeds} seeds, every token alike; cached tokens {dict(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
