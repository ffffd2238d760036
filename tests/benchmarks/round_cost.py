# SPDX-License-Identifier: MIT
"""What a whole round costs, as a multiple of the native scheduler's own work for the same rows.

    python tests/benchmarks/round_cost.py [--json] [--rows 16 64] [--rounds 300]

`native` is the wheel alone: a plan, its fields read once, an answer a row, one advance. `loop` is
a whole round over the scripted plane: messages, plan, dispatch, commit, outputs. Both take turns in
one process, so that the ratio means something on a busy machine; so do rounds with and without an
idle plugin on every phase, and with and without a backlog. An idle plugin costs no less than as
many calls of methods that do nothing, made after a round of the loop, whose code and data are then
what the caches hold: that is a comparison of its own. What the plugins that observe add is measured
by `observer_cost.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any

import tokenspeed_scheduler as wheel
from attrs import field, frozen

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.selection import Chosen
from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_core.testing import ScriptedDataPlane
from tokenspeed_hookspecs import (
    AddRequest,
    ControlReply,
    Load,
    Message,
    OutputBatch,
    Plugin,
    Refuse,
    Round,
    SamplingParams,
    StorageTick,
    hookimpl,
)

ROWS = (1, 16, 64, 256, 1024)
PROMPT, BUDGET, PAGE, TURN = 128, 3900, 64, 20
BACKLOG, BACKLOG_PROMPT = 1000, 4000
OneRound = Callable[[], object]


@frozen
class Cost:
    """Microseconds a round of two alternatives that took turns; ratios are second to first."""

    name: str
    first_us: list[float] = field(repr=False)
    second_us: list[float] = field(repr=False)

    def figures(self) -> dict[str, float | str]:
        """Medians, 20th percentiles, their ratios, and the difference of the 20th percentiles."""
        low = [quantiles(values, n=5)[0] for values in (self.first_us, self.second_us)]
        middle = [median(values) for values in (self.first_us, self.second_us)]
        return {
            "name": self.name,
            "first_median_us": middle[0],
            "second_median_us": middle[1],
            "median_ratio": middle[1] / middle[0],
            "p20_ratio": low[1] / low[0],
            "p20_added_us": low[1] - low[0],
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


class Idle(Plugin):
    """Takes part in every phase and does nothing."""

    name = "idle"

    @hookimpl
    def round_report(self, round: Round) -> bytes:
        return b""

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        return None

    @hookimpl
    def request_aborted(self, round: Round) -> None: ...
    @hookimpl
    def storage_tick(self, round: Round) -> StorageTick | None:
        return None

    @hookimpl
    def planned(self, round: Round) -> None: ...
    @hookimpl
    def dispatch(self, round: Round) -> None: ...
    @hookimpl
    def committed(self, round: Round) -> None: ...
    @hookimpl
    def poll_events(self, round: Round) -> Sequence[object]:
        return ()

    @hookimpl
    def scheduler_events(self, round: Round) -> None: ...
    @hookimpl
    def drain_blocked(self, round: Round) -> bool:
        return False

    @hookimpl
    def refuse_release(self, round: Round) -> str | None:
        return None

    @hookimpl
    def busy(self, round: Round) -> bool:
        return False

    @hookimpl
    def request_finished(self, round: Round) -> None: ...
    @hookimpl
    def iteration(self, round: Round) -> None: ...
    @hookimpl
    def round_done(self, round: Round) -> None: ...


def config(rows: int, *, depth: int) -> EngineConfig:
    """A pool that holds all rows to their end, and nothing beside them."""
    scheduler = SchedulerSection(
        page_size=PAGE,
        num_pages=rows * ((PROMPT + BUDGET) // PAGE + 2) + 1,
        max_batch_size=rows,
        max_scheduled_tokens=1 << 18,
    )
    return EngineConfig(
        engine=EngineSection(data_plane="scripted", depth=depth),
        scheduler=scheduler,
        without=("batch_log", "finish_line"),
        data_plane={"max_model_len": 16_384, "vocab_size": 1 << 20},
    )


def prompt(index: int, length: int = PROMPT) -> list[int]:
    """Ids that no other prompt shares."""
    return [(index * 997 + at) % 99_991 for at in range(length)]


def loop_round(
    rows: int, *, depth: int = 1, plugins: Sequence[Chosen] = (), backlog: int = 0
) -> OneRound:
    """A rank whose rows all decode; returns its round."""
    sampling = SamplingParams(max_new_tokens=BUDGET)
    messages = [AddRequest(f"request-{row:06d}", prompt(row), sampling) for row in range(rows)]
    messages += [
        AddRequest(f"waiting-{at:06d}", prompt(rows + at, BACKLOG_PROMPT), sampling)
        for at in range(backlog)
    ]
    rank = build_rank(
        config(rows, depth=depth),
        plugins,
        surroundings=Surroundings(
            frontend=Sink(messages),
            make_data_plane=ScriptedDataPlane,
            make_scheduler=NativeScheduler,
        ),
    )
    rank.start()
    return rank.loop.round


def round_and_bare_calls(rows: int) -> OneRound:
    """A round without plugins, and then the calls that it would make to an idle one."""
    one, idle, round = loop_round(rows), object.__new__(Idle), Round(1)
    calls: list[Callable[[Round], object]] = [
        *(idle.round_report, idle.storage_tick, idle.planned, idle.dispatch, idle.iteration),
        *(idle.committed, idle.poll_events, idle.scheduler_events, idle.round_done),
    ]

    def both() -> None:
        one()
        for call in calls:
            call(round)

    return both


def native_round(rows: int) -> OneRound:
    """The same rows on the wheel alone, its events kept by request."""
    scheduler: Any = NativeScheduler(config(rows, depth=1).scheduler.settings()).native
    specs = []
    for row in range(rows):
        spec = wheel.RequestSpec()
        spec.request_id, spec.tokens = f"request-{row:06d}", prompt(row)
        spec.max_new_tokens = BUDGET
        specs.append(spec)
    scheduler.submit_requests(specs)
    events = {spec.request_id: _answers(spec.request_id) for spec in specs}

    def one() -> None:
        plan = scheduler.next_execution_plan()
        batch = plan.forward[0]
        names, num_extends = batch.request_ids, batch.num_extends()
        _read(plan, batch)
        answers = wheel.ExecutionEvent()
        for row, name in enumerate(names):
            result, reserve = events[name]
            result.tokens = [7]
            answers.add_event(result)
            if row >= num_extends:
                answers.add_event(reserve)
        scheduler.advance(answers)

    return one


def _answers(name: str) -> tuple[Any, Any]:
    result, reserve = wheel.ForwardEvent.ExtendResult(), wheel.ForwardEvent.UpdateReserveNumTokens()
    result.request_id = reserve.request_id = name
    reserve.reserve_num_tokens_in_next_schedule_event = 1
    return result, reserve


def _read(plan: Any, batch: Any) -> tuple[object, ...]:
    """Each field a data plane needs, once."""
    return (
        batch.request_pool_indices,
        batch.input_lengths,
        batch.decode_input_ids,
        batch.block_tables_arrays(),
        plan.pages_to_zero_arrays(),
        plan.pages_to_copy_arrays(),
        plan.cache,
        plan.aborts,
    )


def take_turns(name: str, first: OneRound, *, second: OneRound, rounds: int) -> Cost:
    """Time single rounds of both, in turns of a few."""
    cost = Cost(name, [], [])
    for one in (first, second):
        _time(one, 4)  # the prompts, and what is built at first use
    for _ in range(max(1, rounds // TURN)):
        cost.first_us.extend(_time(first, TURN))
        cost.second_us.extend(_time(second, TURN))
    return cost


def _time(one: OneRound, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        start = perf_counter_ns()
        one()
        found.append((perf_counter_ns() - start) / 1000)
    return found


def measure(rows: Sequence[int], rounds: int) -> list[Cost]:
    """Every comparison, over the given row counts."""
    costs = [
        take_turns(
            f"native to loop, depth {depth}, {count} rows",
            native_round(count),
            second=loop_round(count, depth=depth),
            rounds=rounds,
        )
        for depth in (1, 0)
        for count in rows
    ]
    costs += [
        take_turns(
            f"without and with an idle plugin, {count} rows",
            loop_round(count),
            second=loop_round(count, plugins=[Idle]),
            rounds=4 * rounds,
        )
        for count in (1, 64)
    ]
    costs += [
        take_turns(
            f"without and with the same calls alone, {count} rows",
            loop_round(count),
            second=round_and_bare_calls(count),
            rounds=4 * rounds,
        )
        for count in (1, 64)
    ]
    costs += [
        take_turns(
            f"without and with {BACKLOG} waiting prompts of {BACKLOG_PROMPT}, {count} rows",
            loop_round(count),
            second=loop_round(count, backlog=BACKLOG),
            rounds=rounds,
        )
        for count in (1, 64)
    ]
    return costs


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, as lines or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    given = parser.parse_args(arguments)
    figures = [cost.figures() for cost in measure(given.rows, given.rounds)]
    if given.json:
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")
        return
    sys.stdout.write("  first us  second us  median x   p20 x  added us\n")
    for each in figures:
        sys.stdout.write(
            f"{each['first_median_us']:10.1f} {each['second_median_us']:10.1f} "
            f"{each['median_ratio']:9.2f} {each['p20_ratio']:7.2f} {each['p20_added_us']:9.2f}  "
            f"{each['name']}\n"
        )


if __name__ == "__main__":
    main()
