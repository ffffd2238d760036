# SPDX-License-Identifier: MIT
"""What the tiers below the device save, and what they cost, as ratios of one run.

Time to the first token of a prompt whose first 1,024 tokens are shared: computed, loaded from the
host tier, fetched from the file store. Then throughput with both tiers on and nothing to hit, over
that without. The sides take turns; the first turn of each is a warm-up. Printed are medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import define, frozen
from rich.console import Console
from rich.table import Table

from tokenspeed_core import LocalEngine, compose

PREFIX, TAIL, VOCAB = 1024, 16, 40_000
ROWS, PROMPT, OUTPUT = 16, 320, 64
PAGES: Mapping[str, Any] = {"num_pages": 257, "page_size": 64}
SETTLE_S = 60.0
LIMITS = {"host tier": 4.0, "file store": 3.0, "nothing to hit": 0.97}
Prompt = list[int]


@frozen
class Ratio:
    """One result: two medians in seconds, and how many times the first is the second."""

    name: str
    base_s: float
    measured_s: float

    @property
    def value(self) -> float:
        """Times as fast."""
        return self.base_s / self.measured_s

    @property
    def is_enough(self) -> bool:
        """Whether it reaches its limit."""
        return self.value >= LIMITS[self.name]


@define
class Bench:
    """Engines of one model, and prompts that no engine has seen."""

    given: argparse.Namespace
    folder: Path
    stack: ExitStack
    dice: random.Random

    def engine(self, **options: Any) -> LocalEngine:
        """Start an engine; it is stopped at the end."""
        model, threads = self.given.model, self.given.threads
        return self.stack.enter_context(compose(model, threads=threads, **PAGES, **options))

    def tiers(self) -> Mapping[str, Any]:
        """The options of an engine with both tiers."""
        store = {"store": f"file:{self.folder}", "wait_timeout_s": SETTLE_S}
        return {"host_cache": self.given.host_cache, "plugins": ["l3"], "l3": store}

    def tokens(self, count: int) -> Prompt:
        """Tokens that begin no earlier prompt."""
        return self.dice.choices(range(100, VOCAB), k=count)


def first_token_s(engine: LocalEngine, prompt: Prompt, *, tier: str | None) -> float:
    """Seconds to the first token; AssertionError if the prefix was not where it should be."""
    start = time.perf_counter()
    usage = engine.generate(prompt, max_new_tokens=1, temperature=0.0).usage
    seconds = time.perf_counter() - start
    found = usage.cached_by_tier.get(tier, 0) if tier else PREFIX - usage.cached_tokens
    # The last page of the prefix goes on with the tail, which differs.
    assert found >= PREFIX - PAGES["page_size"], f"expected the prefix in {tier}, got {usage}"
    return seconds


def forget(engine: LocalEngine) -> None:
    """Let the device's pages go, once all of them are in the host tier."""
    for name in ("release_memory", "resume_memory"):
        reply = engine.control(name, tags=["kv_cache"])
        assert reply.success, reply.message


def first_tokens(bench: Bench) -> Sequence[Ratio]:
    """Time to first token, from each place."""
    repeats = bench.given.repeats + 1
    prefixes = [bench.tokens(PREFIX) for _ in range(repeats)]
    with compose(bench.given.model, **PAGES, **bench.tiers()) as writer:
        for prefix in prefixes:
            writer.generate(prefix + bench.tokens(TAIL), max_new_tokens=1)
            wait_for_objects(bench)
    off, stored = bench.engine(), bench.engine(**bench.tiers())
    host = bench.engine(host_cache=bench.given.host_cache)
    times: dict[str, list[float]] = {"off": [], "host": [], "storage": []}
    for prefix in prefixes:
        computed = bench.tokens(PREFIX + TAIL)
        times["off"].append(first_token_s(off, computed, tier=None))
        host.generate(prefix + bench.tokens(TAIL), max_new_tokens=1)
        forget(host)
        for tier, engine in (("host", host), ("storage", stored)):
            prompt = prefix + bench.tokens(TAIL)
            times[tier].append(first_token_s(engine, prompt, tier=tier))
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}
    return [
        Ratio("host tier", medians["off"], medians["host"]),
        Ratio("file store", medians["off"], medians["storage"]),
    ]


def wait_for_objects(bench: Bench) -> None:
    """Wait until the store has as many objects for a while: nothing is being put any more."""
    before, limit = -1, time.monotonic() + SETTLE_S
    while (now := sum(1 for _ in bench.folder.rglob("*"))) != before:
        before = now
        assert time.monotonic() < limit, "the store is never done"
        time.sleep(0.5)


def throughput(bench: Bench) -> Ratio:
    """The same load with both tiers on and without; no prompt has been seen before."""
    sides = {"off": bench.engine(), "on": bench.engine(**bench.tiers())}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(bench.given.repeats + 1):
        for name, engine in sides.items():
            prompts = [bench.tokens(PROMPT) for _ in range(ROWS)]
            start = time.perf_counter()
            engine.generate(prompts, max_new_tokens=OUTPUT, temperature=0.0, ignore_eos=True)
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}
    return Ratio("nothing to hit", medians["off"], medians["on"])


def show(results: Sequence[Ratio]) -> None:
    """Print a table."""
    table = Table("load", "without", "with", "times as fast", "at least")
    for one in results:
        style = "green" if one.is_enough else "red"
        table.add_row(
            one.name,
            f"{one.base_s * 1000:,.0f} ms",
            f"{one.measured_s * 1000:,.0f} ms",
            f"[{style}]{one.value:.2f}",
            f"{LIMITS[one.name]:.2f}",
        )
    Console().print(table)


def main() -> int:
    """Parse the command line, measure, print; 1 if a ratio is below its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--host-cache", default="1GiB")
    parser.add_argument("--folder", help="where the store lies, for the disk to be measured")
    given = parser.parse_args()
    results: list[Ratio] = []
    measures: Sequence[Callable[[Bench], Sequence[Ratio]]] = (
        first_tokens,
        lambda bench: [throughput(bench)],
    )
    for measure in measures:
        with TemporaryDirectory(prefix="tiers-", dir=given.folder) as name, ExitStack() as stack:
            results += measure(Bench(given, Path(name), stack, random.Random(1)))
    show(results)
    return 0 if all(one.is_enough for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
