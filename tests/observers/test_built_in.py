# SPDX-License-Identifier: MIT
"""The built-in observers: batch log and finish line, line by line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest
from attrs import define, evolve, field

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.config import EngineConfig, EngineSection
from tokenspeed_core.observers.batch_log import BatchLog
from tokenspeed_core.observers.finish_line import FinishLine
from tokenspeed_core.observers.safe_text import MAX_CHARACTERS, safe
from tokenspeed_core.ranks.single import SingleGroup, SingleRank
from tokenspeed_core.testing import ManualFrontend, request
from tokenspeed_core.testing.batches import DecodeRow, ExtendRow, batch_of
from tokenspeed_hookspecs import (
    Batch,
    CommittedForward,
    Engine,
    FinishedRequest,
    FinishKind,
    FinishReason,
    ForwardResult,
    Round,
    SchedulerSizes,
)

LOGGER = "tokenspeed.observers.test"


@define
class Sizes:
    """The part of a scheduler that the batch log reads."""

    sizes: SchedulerSizes = field(default=SchedulerSizes(5, 0, 0, 0, 30, 60, 100))


@define
class Watched:
    """The part of an engine that the built-in observers use; `now` is its clock."""

    lines: list[str]
    now: float = 100.0
    ranks: Any = field(factory=SingleRank)
    scheduler: Sizes = field(factory=Sizes)
    log: logging.Logger = field(factory=lambda: logging.getLogger(LOGGER))

    def clock(self) -> float:
        return self.now

    @property
    def engine(self) -> Engine:
        return cast(Engine, self)


class Member(SingleGroup):
    """A member of a group of two."""

    size = 2

    def __init__(self, index: int) -> None:
        self.index = index


def ranks_with(**groups: int) -> Any:
    """The groups of a rank, with this rank's place in some of them."""
    ranks = SingleRank()
    for name, index in groups.items():
        setattr(ranks, name, Member(index))
    return ranks


class Lines(logging.Handler):
    """Keeps what was logged."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def watched() -> Iterator[Watched]:
    """An engine whose log lines can be read."""
    found = Watched([])
    handler = Lines(found.lines)
    found.log.addHandler(handler)
    found.log.setLevel(logging.INFO)
    yield found
    found.log.removeHandler(handler)


def batch_log(watched: Watched, **options: Any) -> BatchLog:
    """The observer with these options."""
    return BatchLog(BatchLog.Options(**options), watched.engine)


def forward(log: BatchLog, batch: Batch, *, lengths: list[int] | None = None) -> None:
    """Dispatch and commit one batch."""
    round = Round(1, batch=batch)
    log.iteration(round)
    result = ForwardResult([7] * sum(lengths or [len(batch.request_ids)]), lengths)
    round.forward = CommittedForward(batch, result, (), 1)
    log.committed(round)


def decodes(count: int) -> Batch:
    """A decode batch of so many rows."""
    return batch_of([], [DecodeRow(f"r{row}", [1]) for row in range(count)])


PROMPT = ExtendRow("p", range(1, 21), [1], prefix=4)


# --- batch log -----------------------------------------------------------------------------


def test_a_prefill_batch_has_its_line(watched: Watched) -> None:
    """Kind, new sequences, new tokens, cached tokens, running and queued requests, in order."""
    forward(batch_log(watched), batch_of([PROMPT]))
    assert watched.lines == [
        "Prefill batch, #new-seq: 1, #new-token: 16, #cached-token: 4, #running-req: 1, "
        "#queue-req: 5"
    ]


def test_a_batch_of_both_kinds_is_a_mix(watched: Watched) -> None:
    """Decode rows count as running and add their input tokens."""
    forward(batch_log(watched), batch_of([PROMPT], [DecodeRow("d", [2])]))
    assert watched.lines[0].startswith("Mix batch, #new-seq: 1, #new-token: 17, #cached-token: 4")
    assert "#running-req: 2" in watched.lines[0]


def test_a_later_chunk_counts_no_cached_tokens(watched: Watched) -> None:
    """What the first chunk left is the request's own, not a prefix hit."""
    log = batch_log(watched)
    forward(log, batch_of([evolve(PROMPT, length=8)]))
    forward(log, batch_of([evolve(PROMPT, prefix=12)]))
    assert "#cached-token: 4" in watched.lines[0]
    assert "#cached-token: 0" in watched.lines[1]


def test_a_reused_id_is_a_new_request(watched: Watched) -> None:
    """A second incarnation's prefix hit counts."""
    log = batch_log(watched)
    again = batch_of([PROMPT])
    again.incarnations[0] = 2
    forward(log, batch_of([PROMPT]))
    forward(log, again)
    assert ["#cached-token: 4" in line for line in watched.lines] == [True, True]


def test_a_decode_batch_has_a_line_each_interval(watched: Watched) -> None:
    """Pages, their share, and the tokens committed since the last line by the seconds since it."""
    log = batch_log(watched, interval=3)
    for _ in range(3):
        watched.now += 0.5
        forward(log, decodes(4))
    assert watched.lines == [
        "Decode batch, #running-req: 4, #pages(active/cached/total): 30/10/100, page ratio: 0.30, "
        "gen throughput (token/s): 5.33, #queue-req: 5"
    ]


def test_counters_restart_after_a_line(watched: Watched) -> None:
    """A line tells of the time since the one before it."""
    log = batch_log(watched, interval=2)
    for _ in range(4):
        watched.now += 1.0
        forward(log, decodes(3))
    assert "gen throughput (token/s): 1.50" in watched.lines[0]
    assert "gen throughput (token/s): 3.00" in watched.lines[1]


def test_every_forward_counts_for_the_interval(watched: Watched) -> None:
    """Prefill forwards count too, and add no decoded tokens."""
    log = batch_log(watched, interval=2)
    watched.now += 1.0
    forward(log, batch_of([PROMPT]))
    forward(log, decodes(1))
    assert [line.split()[0] for line in watched.lines] == ["Prefill", "Decode"]
    assert "gen throughput (token/s): 0.00" in watched.lines[1]


def test_drafts_add_their_acceptance(watched: Watched) -> None:
    """With draft steps, tokens a row and the accepted share of the drafts."""
    log = batch_log(watched, interval=2, draft_steps=3)
    forward(log, decodes(2), lengths=[4, 2])
    forward(log, decodes(2), lengths=[1, 1])
    assert "avg_accept_len: 3.00, accept_rate: 0.67, #queue-req: 5" in watched.lines[0]


def test_no_time_and_no_pages_divide_nothing(watched: Watched) -> None:
    """A clock that stands still and an empty pool give zeros."""
    watched.scheduler.sizes = SchedulerSizes(0, 0, 0, 0, 0, 0, 0)
    forward(batch_log(watched, interval=1), decodes(1))
    assert "page ratio: 0.00, gen throughput (token/s): 0.00" in watched.lines[0]


def test_the_data_parallel_rank_is_named(watched: Watched) -> None:
    """With data parallelism a line says which replica's it is, whatever ranks each has."""
    watched.ranks = ranks_with(replica=0, dp=2)
    watched.ranks.rank = 2
    forward(batch_log(watched), batch_of([PROMPT]))
    assert watched.lines[0].startswith("Prefill batch DP rank 1, #new-seq: 1")


def test_only_the_owner_speaks(watched: Watched) -> None:
    """Other members of the replica, and a log that is switched off, are silent."""
    finished = Round(1, finished=FINISHED)
    forward(batch_log(watched, enabled=False), batch_of([PROMPT]))
    FinishLine(FinishLine.Options(enabled=False), watched.engine).request_finished(finished)
    watched.ranks = ranks_with(replica=1)
    forward(batch_log(watched), batch_of([PROMPT]))
    FinishLine(FinishLine.Options(), watched.engine).request_finished(finished)
    assert watched.lines == []


# --- finish line ---------------------------------------------------------------------------

FINISHED = FinishedRequest(
    request_id="r",
    reason=FinishReason(FinishKind.LENGTH, length=5),
    prompt_tokens=20,
    cached_tokens=5,
    output_tokens=5,
    received_at=10.0,
    submitted_at=10.0,
    scheduled_at=10.25,
    prefilled_at=10.5,
    first_token_at=10.5,
    finished_at=12.5,
    preempted_s=0.125,
    preemptions=2,
)


def finish(watched: Watched, finished: FinishedRequest, *, stats: bool) -> list[str]:
    """The lines of one finished request."""
    observer = FinishLine(FinishLine.Options(stats=stats), watched.engine)
    observer.request_finished(Round(1, finished=finished))
    return watched.lines


def test_the_line_without_statistics(watched: Watched) -> None:
    """The id, and no accepted drafts without speculation."""
    assert finish(watched, FINISHED, stats=False) == ["Req: r Finish! Accept_num_tokens_avg: 0.0"]


def test_statistics_tell_where_cached_tokens_were(watched: Watched) -> None:
    """By tier, behind all else, where they were not all on the device."""
    tiered = evolve(FINISHED, cached_by_tier={"device": 1, "host": 4})
    (line,) = finish(watched, tiered, stats=True)
    assert line.endswith("cache_tokens_device=1, cache_tokens_host=4)")


def test_a_request_without_a_commit_has_no_short_line(watched: Watched) -> None:
    """Aborted before its first commit, a request shows only in statistics."""
    early = evolve(FINISHED, prefilled_at=None, first_token_at=None, output_tokens=0)
    assert finish(watched, early, stats=False) == []


def test_the_line_with_statistics(watched: Watched) -> None:
    """Every value, in order, with its digits."""
    assert finish(watched, FINISHED, stats=True) == [
        "Req: r Finish! RequestStats(status=finished, reason=length, prompt_tokens=20, "
        "cache_tokens=5, output_tokens=5, cache_hit_rate=0.2500, queue_ms=250.00, "
        "prefill_ms=250.00, ttft_ms=500.00, total_ms=2500.00, preempt_ms=125.00, preempt_count=2, "
        "decode_tps=2.0, acc_len=None, acc_rate=None, recv_ts=10.000, commit_ts=10.500, "
        "finish_ts=12.500)"
    ]


def test_times_that_never_came_are_zero(watched: Watched) -> None:
    """An aborted request that never ran gives zeros, no huge numbers and no error."""
    never = evolve(
        FINISHED,
        reason=FinishReason(FinishKind.ABORT, message="gone"),
        prompt_tokens=0,
        output_tokens=0,
        scheduled_at=None,
        prefilled_at=None,
        first_token_at=None,
    )
    (line,) = finish(watched, never, stats=True)
    assert "status=aborted, reason=abort" in line
    assert "cache_hit_rate=0.0000, queue_ms=0.00, prefill_ms=0.00, ttft_ms=0.00" in line
    assert "decode_tps=0.0" in line
    assert "commit_ts=0.000" in line


# --- any text --------------------------------------------------------------------------------


@pytest.mark.parametrize("character", ["a", "é", "語", "🙂"])
@pytest.mark.parametrize("around", [-1, 0, 1])
def test_a_long_text_is_cut_between_characters(character: str, around: int) -> None:
    """Whatever a character's bytes, the cut is a text of at most the allowed length."""
    text = safe(character * (MAX_CHARACTERS + around))
    assert len(text) <= MAX_CHARACTERS
    assert set(text) <= {character, "…"}


def test_odd_ids_are_escaped(watched: Watched) -> None:
    """A lone surrogate, NUL and a line break are written out, so that a line stays a line."""
    (line,) = finish(watched, evolve(FINISHED, request_id="a\ud800\0\nb"), stats=False)
    assert line.startswith("Req: a\\ud800\\x00\\nb Finish!")
    assert line.encode("utf-8")


# --- in an engine ----------------------------------------------------------------------------


def test_both_observers_speak_in_an_engine(caplog: pytest.LogCaptureFixture) -> None:
    """Composed like any plugin, they tell of a request's prefill and of its end."""
    frontend = ManualFrontend()
    config = EngineConfig(engine=EngineSection(data_plane="scripted"))
    rank = build_rank(config, surroundings=Surroundings(frontend=frontend))
    rank.start()
    frontend.put(request("one", 5, budget=2))
    with caplog.at_level(logging.INFO, "tokenspeed"):
        for _ in range(10):
            rank.loop.round()
    rank.stop()
    assert [line.split(",")[0] for line in caplog.messages] == [
        "Prefill batch",
        "Req: one Finish! Accept_num_tokens_avg: 0.0",
    ]
