# SPDX-License-Identifier: MIT
"""The plugin `trace`: each round with its phases, each plugin's calls, forwards and requests.

It keeps the last events and writes them when the engine stops. Rounds in which nothing happened
are left out: an idle engine has a hundred of them a second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from time import perf_counter

from attrs import define, field, frozen

from tokenspeed_core.trace.events import Event, TraceEvents
from tokenspeed_hookspecs import (
    Batch,
    Engine,
    FinishedRequest,
    Plugin,
    Round,
    RoundTimes,
    Timekeeper,
    hookimpl,
)

ROUNDS = "rounds"
ORDER = (
    *("receive", "admit", "pause", "gate", "storage", "plan", "dispatch", "commit", "events"),
    "drain",
)
SHOWN_IDS = 8


@define
class _Forward:
    number: int
    begin: float
    lane: int
    facts: Mapping[str, object]


class RoundTrace(Plugin):
    """Watches; on a rank without it nothing is measured."""

    name = "trace"

    @frozen
    class Options:
        """Where the trace goes, and how much of it is kept."""

        file: Path | None = field(
            default=None,
            metadata={"help": "the file to write when the engine stops; none without it"},
        )
        most_events: int = field(
            default=300_000, metadata={"help": "events to keep, the last ones", "minimum": 100}
        )

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self.events = TraceEvents(options.most_events, engine.ranks.rank, perf_counter())
        for name in (ROUNDS, *ORDER):
            self.events.track(name)
        # The engine's clock may be another one than the timekeepers'.
        self._clock_s = perf_counter() - engine.clock()
        self._name = ""
        self._facts: Mapping[str, object] | None = None  # of a round in which something happened
        self._running: deque[_Forward] = deque()
        self._committed = 0
        self._flows = 0

    @property
    def path(self) -> Path | None:
        """The file of this rank; ranks after the first add their number."""
        rank, file = self.engine.ranks.rank, self.options.file
        if file is None:
            return None
        path = Path(file)
        return path if rank == 0 else path.with_suffix(f".{rank}{path.suffix}")

    @hookimpl
    def timekeeper(self) -> Timekeeper | None:
        return self.round_ended

    @hookimpl
    def stop(self) -> None:
        path = self.path
        if path is None or not len(self.events):
            return
        try:
            self.events.write(path)
        except OSError as error:
            # The engine has done its work; a full disk is no reason to say that it failed.
            self.engine.log.error("the trace was not written: %s", error)
        else:
            self.engine.log.info("wrote %d events to %s", len(self.events), path)

    # --- the round -------------------------------------------------------------------------------

    def round_ended(self, times: RoundTimes) -> None:
        """Take a round's phases, and the calls inside each, unless nothing happened in it."""
        facts, self._facts = self._facts, None
        if facts is None:
            return
        begins, add = times.begins, self.events.add
        for name, (begin, end) in zip(times.phases, pairwise(begins), strict=True):
            add(Event("X", name, self.events.track(name), begin, end))
        for plugin, hook, begin, end in times.calls:
            phase = times.phases[bisect_right(begins, begin) - 1]
            add(Event("X", f"{plugin}.{hook}", phase, begin, end))
        add(Event("X", self._name, ROUNDS, begins[0], begins[-1], facts=facts))

    @hookimpl
    def round_done(self, round: Round) -> None:
        batch, committed = round.batch, self._committed
        self._committed = 0
        if not (batch or committed or round.num_outputs or round.finished):
            return
        self._name = f"round {round.number}"
        self._facts = {
            "rows": len(batch.request_ids) if batch else 0,
            "tokens": batch.num_tokens if batch else 0,
            "outputs": round.num_outputs,
            "frozen": round.frozen,
        }

    # --- forwards and requests -------------------------------------------------------------------

    @hookimpl
    def iteration(self, round: Round) -> None:
        if round.batch is not None:
            taken = {each.lane for each in self._running}
            lane = next(at for at in range(len(taken) + 1) if at not in taken)
            facts = _facts(round.batch)
            self._running.append(_Forward(round.number, perf_counter(), lane, facts))

    @hookimpl
    def forward_done(self, round: Round) -> None:
        if not self._running:
            return
        self._committed += 1
        forward = self._running.popleft()
        track = self.events.track(f"forwards {forward.lane + 1}, dispatch to commit")
        name, end = f"forward of round {forward.number}", perf_counter()
        self.events.add(Event("X", name, track, forward.begin, end, facts=forward.facts))

    @hookimpl
    def request_finished(self, round: Round) -> None:
        if round.finished is not None:
            self._add_flow(round.finished)

    def _add_flow(self, finished: FinishedRequest) -> None:
        """An arrow through the phases in which a request got on."""
        self._flows += 1
        facts = {
            "request": finished.request_id,
            "finish": finished.reason.kind.value,
            "prompt_tokens": finished.prompt_tokens,
            "cached_tokens": finished.cached_tokens,
            "output_tokens": finished.output_tokens,
        }
        steps = [
            ("s", "admit", finished.received_at),
            ("t", "dispatch", finished.scheduled_at),
            ("t", "commit", finished.first_token_at),
            ("f", "commit", finished.finished_at),
        ]
        for kind, track, at in steps:
            if at is not None:
                name, begin = f"request {finished.request_id}", at + self._clock_s
                self.events.add(Event(kind, name, track, begin, flow=self._flows, facts=facts))


def _facts(batch: Batch) -> dict[str, object]:
    return {
        "rows": len(batch.request_ids),
        "prompts": batch.num_extends,
        "tokens": batch.num_tokens,
        "requests": ", ".join(batch.request_ids[:SHOWN_IDS]),
    }
