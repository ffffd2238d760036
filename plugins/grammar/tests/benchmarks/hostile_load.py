# SPDX-License-Identifier: MIT
"""What hostile grammars cost everybody else: round times with and without them, in one run.

A thousand requests name 50 schemas, of which 10 are broken and 5 take their compiler as long as one
can; some are aborted, and the engine is paused again and again. The same load without grammars runs
on the same engine, in turns; what is refused with them is left out there, so that as many requests
run. Printed are median and p99 of the rounds that ran a forward, and their ratios: by the wall, of
the loop thread's own, and by the wall less what the loop thread waited for a processor (on a busy
machine the one to look at).

    python plugins/grammar/tests/benchmarks/hostile_load.py [--requests 1000] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen
from rich.console import Console
from rich.table import Table

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.models.progress import Silent
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.models.tokenizer import load_tokenizer
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.scripted_frontend import ManualFrontend
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.testing.torch_engine import TorchSetup
from tokenspeed_grammar.plugin import GrammarPlugin
from tokenspeed_hookspecs import AbortRequests, AddRequest, ControlRequest, Message, Tokenizer

LIMIT = 2.0
ABORT_EVERY, PAUSE_EVERY, PAUSED_ROUNDS = 20, 150, 5
SCHEDULED = Path("/proc/thread-self/schedstat")  # ns run, ns waited for a processor, turns
KINDS = ("wall_ms", "cpu_ms", "unqueued_ms")


def _wide(turn: int) -> dict[str, Any]:
    names = [f"p{turn}_{number}" for number in range(3000)]
    text = {"type": "string", "pattern": "^[a-z]{3,9}$"}
    return {"type": "object", "properties": dict.fromkeys(names, text), "required": names}


def bombs(turn: int) -> list[dict[str, Any]]:
    """Schemas that take a compiler long, or much of it; others every turn."""
    choices = {"anyOf": [{"const": f"{turn}" + "x" * number} for number in range(1500)]}
    product: list[dict[str, Any]] = [
        {"anyOf": [{"properties": {f"k{turn}{row}{column}": {}}} for column in range(6)]}
        for row in range(8)
    ]
    return [
        _wide(turn),
        choices,
        {"allOf": product},
        {"type": "integer", "multipleOf": 9973 - 2 * turn},
        {"enum": [f"v{turn}_{number}" for number in range(20000)]},
    ]


def broken(turn: int) -> list[dict[str, Any]]:
    """Schemas that are refused."""
    wrong: list[dict[str, Any]] = [
        {"type": "foo"},
        {"type": "string", "pattern": "([a-z"},
        {"not": {}},
        {"$ref": "#/$defs/missing"},
        {"type": "array", "uniqueItems": True},
        {"type": "string", "format": "regex"},
        {"minimum": "one"},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"type": "string", "pattern": r"(a)\1"},
        {"anyOf": []},
    ]
    return [{"title": f"{turn}", **schema} for schema in wrong]


def usual(turn: int, count: int) -> list[dict[str, Any]]:
    """Schemas as clients send them."""
    return [
        {
            "type": "object",
            "properties": {
                f"name_{turn}_{number}": {"type": "string", "pattern": "^[A-Z][a-z]+$"},
                "age": {"type": "integer", "minimum": 0, "maximum": 100 + number},
                "tags": {"type": "array", "items": {"enum": ["a", "b", f"c{number}"]}},
                "born": {"type": "string", "format": "date"},
            },
            "required": [f"name_{turn}_{number}", "age"],
            "additionalProperties": False,
        }
        for number in range(count)
    ]


def schemas(turn: int) -> list[str]:
    """The fifty, mixed."""
    found = [*usual(turn, 35), *broken(turn), *bombs(turn)]
    return [json.dumps(found[(7 * place) % len(found)]) for place in range(len(found))]


def refused(turn: int) -> set[str]:
    """Those of them that no request gets by."""
    product = bombs(turn)[2]
    return {json.dumps(each) for each in [*broken(turn), product]}


def load(turn: int, count: int, *, constrained: bool) -> list[AddRequest]:
    """The requests of one side of a turn."""
    sources = schemas(turn)
    side = "g" if constrained else "p"
    found = []
    for number in range(count):
        source = sources[number % len(sources)]
        plain = request(f"{side}{turn}-{number}", 16, budget=6, seed=number, temperature=1.0)
        if constrained:
            found.append(evolve(plain, features={"json_schema": source}))
        elif source not in refused(turn):
            found.append(plain)
    return found


@frozen
class RoundTime:
    """One round of the loop thread, in milliseconds."""

    wall_ms: float
    cpu_ms: float
    unqueued_ms: float


@frozen
class Instant:
    """The clocks of this thread, in milliseconds."""

    wall: float
    cpu: float
    queued: float

    @classmethod
    def now(cls) -> Instant:
        """Read them."""
        queued_ns = int(SCHEDULED.read_text().split()[1])
        return cls(1e3 * time.perf_counter(), 1e3 * time.thread_time(), queued_ns / 1e6)

    def until(self, end: Instant) -> RoundTime:
        """What passed between two instants."""
        wall = end.wall - self.wall
        return RoundTime(wall, end.cpu - self.cpu, wall - (end.queued - self.queued))


class PacedFrontend(ManualFrontend):
    """Waits for messages as long as the loop lets it, like a real one."""

    def receive(self, wait_s: float | None) -> Sequence[Message]:
        """What was put since the last call."""
        if wait_s and not self.has_pending:
            time.sleep(wait_s)
        return super().receive(wait_s)


@define
class Side:
    """Rounds of one kind of load, and how its requests ended."""

    rounds: list[RoundTime] = field(factory=list)
    ends: Counter[str] = field(factory=Counter)

    def p99(self, name: str) -> float:
        """The p99 of one of the times."""
        return statistics.quantiles(self._values(name), n=100)[98]

    def median(self, name: str) -> float:
        """The median of one of the times."""
        return statistics.median(self._values(name))

    def _values(self, name: str) -> list[float]:
        return [getattr(each, name) for each in self.rounds]


def messages(requests: Sequence[AddRequest], arriving: int) -> Iterator[list[Message]]:
    """What each round brings: arrivals, aborts of some of them, pauses that end again."""
    for start in range(0, len(requests), arriving):
        coming: list[Message] = list(requests[start : start + arriving])
        gone = [
            each.request_id
            for place, each in enumerate(requests[max(0, start - 3) : start], max(0, start - 3))
            if place % ABORT_EVERY == 0
        ]
        if gone:
            coming.append(AbortRequests(tuple(gone)))
        number = start // arriving
        if number and number % PAUSE_EVERY == 0:
            mode = ("keep", "abort", "wait")[number // PAUSE_EVERY % 3]
            coming.append(ControlRequest("pause", {"mode": mode}))
        if number % PAUSE_EVERY == PAUSED_ROUNDS:
            coming.append(ControlRequest("resume"))
        yield coming


def run(rank: Rank, frontend: ManualFrontend, requests: Sequence[AddRequest]) -> Side:
    """Run a load to its end; the times of the rounds that had a forward."""
    side = Side()
    coming = messages(requests, arriving=1)
    is_over = False
    while not is_over or len(rank.loop.requests):
        if len(rank.loop.requests) < 200:
            arriving = next(coming, None)
            is_over = arriving is None
            frontend.put(*(arriving or [ControlRequest("resume")]))
        began = Instant.now()
        rank.loop.round()
        if rank.loop.in_flight:
            side.rounds.append(began.until(Instant.now()))
    for each in requests:
        stream = frontend.received[each.request_id]
        # Nobody is told of the end of what its client aborted before it began.
        code = stream.finish.status_code if stream.finish else None
        side.ends[f"{stream.kind} {code}" if code else stream.kind or "gone"] += 1
    return side


def start(model: str, threads: int) -> tuple[Rank, ManualFrontend]:
    """A rank of the model with the plugin."""
    usual: dict[str, Any] = {"scheduler": {"max_batch_size": 16}, "plugins": (GrammarPlugin,)}
    tokenizer: Tokenizer
    if model == "tiny":
        tokenizer = small_tokenizer(vocab_size=300)
        setup = TorchSetup(model=tiny_model(), engine={"threads": threads}, **usual)
    else:
        tokenizer = load_tokenizer(resolve_model(model, Silent()).path)
        engine = {"model": model, "dtype": "bfloat16", "threads": threads}
        setup = TorchSetup(engine=engine, **usual)
    frontend = PacedFrontend()
    around = Surroundings(frontend=frontend, tokenizer=tokenizer)
    rank = build_rank(setup.config(), setup.plugins, surroundings=around)
    rank.start()
    return rank, frontend


def turn_of(rank: Rank, frontend: ManualFrontend, turn: int, *, count: int) -> dict[str, Side]:
    """Both sides of a turn, one after the other."""
    order = ("plain", "grammars") if turn % 2 == 0 else ("grammars", "plain")
    return {
        name: run(rank, frontend, load(turn, count, constrained=name == "grammars"))
        for name in order
    }


def show(console: Console, turn: int, *, sides: dict[str, Side]) -> None:
    """Print a turn."""
    table = Table(f"turn {turn}", "rounds", *[f"{kind} p50, p99" for kind in KINDS], "ends")
    for name in ("plain", "grammars"):
        side = sides[name]
        times = [f"{side.median(kind):.1f}, {side.p99(kind):.1f}" for kind in KINDS]
        ends = ", ".join(f"{end} {count}" for end, count in sorted(side.ends.items()))
        table.add_row(name, str(len(side.rounds)), *times, ends)
    console.print(table)


def main() -> None:
    """Measure and print; the status is 1 where the limit is not held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="or tiny, whose forwards take 1 ms")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    rank, frontend = start(given.model, given.threads)
    console = Console(width=140)
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    try:
        run(rank, frontend, load(-1, 50, constrained=False))
        for turn in range(given.turns):
            sides = turn_of(rank, frontend, turn, count=given.requests)
            show(console, turn, sides=sides)
            for kind, found in ratios.items():
                found.append(sides["grammars"].p99(kind) / sides["plain"].p99(kind))
    finally:
        rank.stop()
    for kind, found in ratios.items():
        each = ", ".join(f"{ratio:.2f}" for ratio in found)
        median = statistics.median(found)
        console.print(f"p99 with grammars over without, {kind}: {median:.2f} ({each})")
    sys.exit(statistics.median(ratios["wall_ms"]) > LIMIT)


if __name__ == "__main__":
    main()
