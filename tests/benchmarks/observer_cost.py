# SPDX-License-Identifier: MIT
"""What the plugins `metrics` and `kv_events` add to a round, in microseconds, against their limits.

    python tests/benchmarks/observer_cost.py [--json] [--rows 256] [--pairs 15] [--rounds 200]

Two engines over the scripted plane, one without and one with the plugin, take turns of ten rounds.
A turn's figure is the lower quartile of its rounds, a pair's the median of the differences of
neighbouring turns. Where an engine's objects lie in memory moves all of its rounds, so there are
several pairs of new engines, and the median of them is told. Run it on a quiet machine. Where other
work disturbs that, one engine tells more that takes turns with itself: as it is, and with nobody
who watches it.

An event's figure is what rounds that store one block in every sixteenth row take more than rounds
that store none, by event. Most of it is the scheduler's, which makes an object of each event it
recorded, so an engine that only records is told as well. `cpu` is the same in processor time of all
threads: what is published is written on a thread of its own, which a loop that waits for its device
does not notice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Sequence
from statistics import median, quantiles
from time import perf_counter_ns, process_time_ns
from typing import Any
from uuid import uuid4

from attrs import define, evolve, field, frozen

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.composition.round_hooks import RoundHooks
from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_core.testing import ScriptedDataPlane
from tokenspeed_hookspecs import (
    AddRequest,
    ControlReply,
    Load,
    Message,
    OutputBatch,
    Plugin,
    SamplingParams,
    SchedulerSettings,
    hookimpl,
)

PROMPT, WARM = 128, 20
TURN, COLD = 10, 2
LONG_PAGE, PAGE, SHORT_PAGE = 2048, 64, 16  # the first is never full, so it is never stored


class Recording(Plugin):
    """Has the scheduler record events, which the loop drains; nobody is told."""

    name = "recording"

    @hookimpl
    def configure_scheduler(self, settings: SchedulerSettings) -> None:
        settings.native_options["enable_kv_cache_events"] = True


@frozen
class Case:
    """A plugin on pages of some size; `blocks` are stored a round."""

    plugin: str | type[Plugin]
    page_size: int
    rows: int

    @property
    def blocks(self) -> int:
        """How many events a round has."""
        return self.rows // SHORT_PAGE if self.page_size == SHORT_PAGE else 0


@define
class Added:
    """What a plugin added to a round: by pair of engines, on the loop and on all threads."""

    loop_us: list[float] = field(factory=list)
    cpu_us: list[float] = field(factory=list)


@frozen
class Answer:
    """A figure and its limit, if it has one."""

    name: str
    limit_us: float | None
    loop_us: list[float] = field(repr=False)
    cpu_us: list[float] = field(repr=False)

    @property
    def is_within(self) -> bool | None:
        """Whether the median over the pairs is within the limit."""
        return None if self.limit_us is None else median(self.loop_us) <= self.limit_us

    def figures(self) -> dict[str, object]:
        """The median over the pairs, the middle half of them, and whether it is within."""
        low, middle, high = quantiles(self.loop_us, n=4)
        return {
            "name": self.name,
            "added_us": middle,
            "quartiles_us": [low, high],
            "limit_us": self.limit_us,
            "within": self.is_within,
            "cpu_us": median(self.cpu_us),
        }


class Sink:
    """A frontend that gives its messages once and forgets what it is sent."""

    is_closed = False

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def receive(self, wait_s: float | None) -> Sequence[Message]:
        messages, self._messages = self._messages, ()
        return messages

    def send(self, outputs: OutputBatch, load: Load) -> None: ...
    def reply(self, reply: ControlReply) -> None: ...


def engine(case: Case, *, is_on: bool, rounds: int) -> Rank:
    """An engine whose rows all decode, each in another place of its page."""
    budget = 4 * (rounds + WARM)
    longest = PROMPT + SHORT_PAGE + budget
    scheduler = SchedulerSection(
        page_size=case.page_size,
        num_pages=case.rows * (longest // case.page_size + 2) + 1,
        max_batch_size=case.rows,
        max_scheduled_tokens=1 << 18,
    )
    config = EngineConfig(
        engine=EngineSection(data_plane="scripted"),
        scheduler=scheduler,
        without=("batch_log", "finish_line"),
        data_plane={"max_model_len": 16_384, "vocab_size": 1 << 20},
    )
    address = {"kv_events": {"endpoint": f"inproc://{uuid4()}"}}
    sampling = SamplingParams(max_new_tokens=budget)
    messages = [
        AddRequest(f"request-{row:06d}", prompt(row, PROMPT + row % SHORT_PAGE), sampling)
        for row in range(case.rows)
    ]
    rank = build_rank(
        evolve(config, tables=address),
        [case.plugin] if is_on else [],
        surroundings=Surroundings(
            frontend=Sink(messages),
            make_data_plane=ScriptedDataPlane,
            make_scheduler=NativeScheduler,
        ),
    )
    rank.start()
    for _ in range(WARM):  # the prompts, and what is built at first use
        rank.loop.round()
    return rank


def prompt(index: int, length: int) -> list[int]:
    """Ids that no other prompt shares."""
    return [(index * 997 + at) % 99_991 for at in range(length)]


def take_turns(case: Case, added: Added, *, rounds: int, is_swapped: bool) -> None:
    """Run a new pair of engines; which is made first changes."""
    order = (is_swapped, not is_swapped)
    ranks = {is_on: engine(case, is_on=is_on, rounds=rounds) for is_on in order}
    loop_us, cpu_us = [], []
    for number in range(max(2, rounds // TURN)):
        turns = {is_on: turn(ranks[is_on]) for is_on in (number % 2 == 0, number % 2 == 1)}
        loop_us.append(turns[True][0] - turns[False][0])
        cpu_us.append(turns[True][1] - turns[False][1])
    for rank in ranks.values():
        rank.stop()
    added.loop_us.append(median(loop_us))
    added.cpu_us.append(median(cpu_us))


def take_turns_alone(case: Case, added: Added, *, rounds: int) -> None:
    """Run one engine, with what watches it and without."""
    rank = engine(case, is_on=True, rounds=2 * rounds)
    loop = rank.loop
    unwatched: deque[str] = deque(maxlen=1)
    kinds: dict[bool, tuple[type[EventLoop], Any, Any]] = {
        True: (type(loop), loop._hooks, loop._enter),
        False: (EventLoop, RoundHooks(), unwatched.append),
    }
    loop_us, cpu_us = [], []
    for number in range(max(2, rounds // TURN)):
        turns = {}
        for is_on in (number % 2 == 0, number % 2 == 1):
            loop.__class__, loop._hooks, loop._enter = kinds[is_on]
            turns[is_on] = turn(rank)
        loop_us.append(turns[True][0] - turns[False][0])
        cpu_us.append(turns[True][1] - turns[False][1])
    loop.__class__, loop._hooks, loop._enter = kinds[True]
    rank.stop()
    added.loop_us.append(median(loop_us))
    added.cpu_us.append(median(cpu_us))


def turn(rank: Rank) -> tuple[float, float]:
    """Some rounds: one's time, and the mean processor time; the first ones only warm up."""
    for _ in range(COLD):
        rank.loop.round()
    took, begin = [], process_time_ns()
    for _ in range(TURN - COLD):
        start = perf_counter_ns()
        rank.loop.round()
        took.append(perf_counter_ns() - start)
    return quantiles(took, n=4)[0] / 1000, (process_time_ns() - begin) / 1000 / (TURN - COLD)


def measure(rows: int, *, pairs: int, rounds: int) -> list[Answer]:
    """Both plugins; pairs of all cases take turns as well."""
    cases = [
        Case("metrics", PAGE, rows),
        Case("kv_events", LONG_PAGE, rows),
        Case("kv_events", SHORT_PAGE, rows),
        Case(Recording, SHORT_PAGE, rows),
    ]
    found, alone = [Added() for _ in cases], Added()
    for number in range(pairs):
        take_turns_alone(cases[0], alone, rounds=rounds)
        for case, added in zip(cases, found, strict=True):
            take_turns(case, added, rounds=rounds, is_swapped=number % 2 == 1)
    metrics, silent, storing, recording = found
    blocks = cases[2].blocks
    return [
        Answer(f"metrics, a round of {rows} rows", 20, metrics.loop_us, metrics.cpu_us),
        Answer("the same, in one engine", 20, alone.loop_us, alone.cpu_us),
        Answer(f"kv_events, a round of {rows} rows", 10, silent.loop_us, silent.cpu_us),
        Answer(
            f"kv_events, an event ({blocks} a round)",
            1,
            _by_event(storing.loop_us, silent.loop_us, blocks),
            _by_event(storing.cpu_us, silent.cpu_us, blocks),
        ),
        Answer(
            "of that, an event drained from the scheduler",
            None,
            _by_event(recording.loop_us, [0.0], blocks),
            _by_event(recording.cpu_us, [0.0], blocks),
        ),
    ]


def _by_event(with_events: list[float], without: list[float], blocks: int) -> list[float]:
    return [(each - median(without)) / blocks for each in with_events]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, as lines or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256, help="a multiple of 16")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    given = parser.parse_args(arguments)
    answers = measure(given.rows, pairs=given.pairs, rounds=given.rounds)
    if given.json:
        sys.stdout.write(json.dumps([each.figures() for each in answers], indent=1) + "\n")
        return
    sys.stdout.write("  added us  (middle half)   limit us             cpu us\n")
    for answer in answers:
        told = answer.figures()
        low, high = quantiles(answer.loop_us, n=4)[::2]
        limit = "" if answer.limit_us is None else f"{answer.limit_us:.1f}"
        verdict = {True: "within", False: "ABOVE", None: ""}[answer.is_within]
        sys.stdout.write(
            f"{told['added_us']:10.2f}  ({low:6.2f}, {high:6.2f}) {limit:>8}  "
            f"{verdict:>7} {told['cpu_us']:10.2f}  {answer.name}\n"
        )


if __name__ == "__main__":
    main()
