# SPDX-License-Identifier: MIT
"""What a request waits for, and that every rank of a replica decides alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from attrs import define, field

from tokenspeed_grammar.backend import CompiledGrammar
from tokenspeed_grammar.keys import GrammarKey, key_of
from tokenspeed_grammar.stage import GrammarStage
from tokenspeed_grammar.testing import (
    TIMEOUT_S,
    CacheBench,
    GivenRequest,
    ThreadGroup,
    on_each,
    thread_groups,
)
from tokenspeed_hookspecs import Hold, Pass, Refuse, Request, Verdict

KEY = GrammarKey("regex", "a")
TIMED_OUT = "Grammar compilation timed out after 10.0s: key=('regex', \"a\")"


@define(eq=False)
class Rank:
    """A rank's stage on a cache that is moved by hand; `attached` has who passed with what."""

    group: ThreadGroup
    queue_limit: int = 100
    bench: CacheBench = field(factory=CacheBench)
    attached: list[tuple[str, CompiledGrammar]] = field(factory=list)
    stage: GrammarStage = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.stage = GrammarStage(
            "grammar",
            self.bench.cache,
            self.group,
            attach=self._attach,
            queue_limit=self.queue_limit,
            key_of=key_of,
        )

    def _attach(self, request: Request, compiled: CompiledGrammar) -> None:
        self.attached.append((request.request_id, compiled))

    def turn(self, held: Sequence[Request]) -> Sequence[Verdict]:
        """One round of the core: poll, agree, settle."""
        codes = self.stage.poll(held)
        return self.stage.settle(held, self.group.agree_min(codes))


def _ranks(size: int) -> list[Rank]:
    return [Rank(group) for group in thread_groups(size)]


def _request(request_id: str = "r0", regex: str | None = "a") -> GivenRequest:
    return GivenRequest(request_id=request_id, features={} if regex is None else {"regex": regex})


def _turn(ranks: Sequence[Rank], held: Sequence[Request]) -> Sequence[Verdict]:
    """A round on every rank at once; they must agree."""
    first, *others = on_each([partial(rank.turn, held) for rank in ranks])
    assert all(each == first for each in others)
    return first


def test_a_plain_request_passes() -> None:
    """What names no grammar is not held, whoever else is."""
    (rank,) = _ranks(1)
    assert rank.stage.enter(_request(regex=None)) == Pass()


def test_a_known_grammar_passes_at_once_on_a_single_rank() -> None:
    """A cache hit costs no round."""
    (rank,) = _ranks(1)
    assert rank.stage.enter(_request("r0")) == Hold()
    rank.bench.pool.end(KEY)
    assert rank.stage.enter(_request("r1")) == Pass()
    assert [name for name, _ in rank.attached] == ["r1"]


def test_a_known_grammar_is_held_on_a_replica() -> None:
    """Its ranks have to agree first, also on a hit."""
    ranks, held = _ranks(2), [_request()]
    for rank in ranks:
        rank.bench.cache.look_up(KEY)
        rank.bench.pool.end(KEY)
        assert rank.stage.enter(held[0]) == Hold()
    assert _turn(ranks, held) == [Pass()]
    assert [len(rank.attached) for rank in ranks] == [1, 1]


def test_the_slowest_rank_decides() -> None:
    """A request passes in the round in which the last rank has its grammar."""
    ranks, held = _ranks(2), [_request()]
    for rank in ranks:
        rank.stage.enter(held[0])
    ranks[0].bench.pool.end(KEY)
    assert _turn(ranks, held) == [Hold()]
    ranks[1].bench.pool.end(KEY)
    assert _turn(ranks, held) == [Pass()]


@pytest.mark.parametrize("marked", [0, 1])
@pytest.mark.parametrize(("timeouts", "status", "gave_up"), [(1, None, False), (3, 400, True)])
def test_a_grammar_unusable_on_one_rank_fails_alike_on_every_rank(
    marked: int, timeouts: int, status: int | None, gave_up: bool
) -> None:
    """The rank with a reason gives it to all of them, message and status alike."""
    ranks, held = _ranks(2), [_request()]
    for _ in range(timeouts):
        ranks[marked].bench.clock.now += TIMEOUT_S
        ranks[marked].bench.cache.look_up(KEY)
        ranks[marked].bench.cache.time_out(KEY)
    for rank in ranks:
        rank.stage.enter(held[0])
    ranks[1 - marked].bench.pool.end(KEY)
    (verdict,) = _turn(ranks, held)
    assert isinstance(verdict, Refuse)
    assert verdict.status_code == status
    assert verdict.message.startswith(f"Failed to compile regex grammar: {TIMED_OUT}")
    assert ("gave up" in verdict.message) == gave_up


def test_the_first_rank_with_a_reason_is_heard() -> None:
    """Two ranks with different reasons tell the first one's."""
    ranks, held = _ranks(3), [_request()]
    for number, rank in enumerate(ranks):
        rank.stage.enter(held[0])
        rank.bench.pool.end(KEY, reason=f"reason {number}" if number else "")
    (verdict,) = _turn(ranks, held)
    assert verdict == Refuse("Failed to compile regex grammar: reason 1", 400)


def test_a_compile_has_its_time_from_its_start() -> None:
    """A request that waited long for a thread is not failed for that; a queued one is, in time."""
    (rank,), held = _ranks(1), [_request()]
    rank.stage.enter(held[0])
    rank.bench.clock.now += TIMEOUT_S - 1
    rank.bench.pool.begin(KEY)
    rank.bench.clock.now += TIMEOUT_S - 1
    assert _turn([rank], held) == [Hold()]
    rank.bench.clock.now += 1
    assert _turn([rank], held) == [Refuse(TIMED_OUT)]


def test_a_compile_that_never_started_times_out() -> None:
    """Behind compiles that do not end a request waits one timeout."""
    (rank,), held = _ranks(1), [_request()]
    rank.stage.enter(held[0])
    rank.bench.clock.now += TIMEOUT_S
    assert _turn([rank], held) == [Refuse(TIMED_OUT)]


def test_a_timeout_counts_once_a_round() -> None:
    """Many requests that wait for one compile are one timeout of it."""
    (rank,), held = _ranks(1), [_request(f"r{number}") for number in range(5)]
    for request in held:
        rank.stage.enter(request)
    rank.bench.clock.now += TIMEOUT_S
    assert _turn([rank], held) == [Refuse(TIMED_OUT)] * 5
    assert rank.bench.cache._timeouts == {KEY: 1}


def test_one_slow_rank_is_too_long_for_all() -> None:
    """A timeout on any rank fails the request on each; only the slow one remembers it."""
    ranks, held = _ranks(2), [_request()]
    for rank in ranks:
        rank.stage.enter(held[0])
    ranks[0].bench.pool.end(KEY)
    ranks[1].bench.clock.now += TIMEOUT_S
    assert _turn(ranks, held) == [Refuse(TIMED_OUT)]
    assert [rank.bench.cache._timeouts for rank in ranks] == [{}, {KEY: 1}]


def test_an_end_between_poll_and_settle_still_counts() -> None:
    """On a single rank a compile that ends just as it times out is taken."""
    (rank,), held = _ranks(1), [_request()]
    rank.stage.enter(held[0])
    rank.bench.clock.now += TIMEOUT_S
    codes = rank.stage.poll(held)
    rank.bench.pool.end(KEY)
    assert rank.stage.settle(held, codes) == [Pass()]


def test_a_full_queue_refuses() -> None:
    """Beyond the limit a request is told to come again; one that leaves makes room."""
    (group,) = thread_groups(1)
    rank = Rank(group, queue_limit=1)
    assert rank.stage.enter(_request("r0")) == Hold()
    verdict = rank.stage.enter(_request("r1", "b"))
    assert isinstance(verdict, Refuse)
    assert verdict.status_code == 503
    rank.stage.leave("r0")
    assert rank.stage.enter(_request("r2", "b")) == Hold()


def test_a_grammar_of_a_request_that_left_is_still_compiled() -> None:
    """A compile that began goes on, and its grammar is there for the next request."""
    (rank,) = _ranks(1)
    rank.stage.enter(_request("r0"))
    rank.bench.pool.begin(KEY)
    rank.stage.leave("r0")
    rank.bench.pool.end(KEY)
    assert rank.stage.enter(_request("r1")) == Pass()
    assert rank.stage.num_held == 0
