# SPDX-License-Identifier: MIT
"""Which requests the wheel gets to see, and when."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed_core.scheduling.backlog import Backlog, Handover
from tokenspeed_core.scheduling.population import Price, Tracked


def request(name: str, num_prompt: int = 10, *, pages: int = 1) -> Tracked:
    """A request as the backlog sees it."""
    return Tracked(name, 0, range(num_prompt), pages)


def full_price(one: Tracked) -> Price:
    """A prompt that shares nothing."""
    return Price(one.num_prompt, one.pages)


def limits_of(*, slots: int = 8, pages: int = 100, must: bool = False) -> Handover:
    """What may be taken."""
    return Handover(
        free_slots=slots,
        must_take_head=must,
        obtainable_pages=lambda: pages,
        price=full_price,
    )


def taken(backlog: Backlog, **limits: Any) -> list[str]:
    """The ids handed over under these limits."""
    return [one.request_id for one in backlog.take(limits_of(**limits))]


def backlog_of(*requests: Tracked, tokens_per_plan: int | None = 100) -> Backlog:
    """A backlog with these waiting."""
    backlog = Backlog(tokens_per_plan)
    for one in requests:
        backlog.push(one)
    return backlog


def test_arrival_order() -> None:
    """Requests leave in the order they came."""
    assert taken(backlog_of(*map(request, "cab"))) == ["c", "a", "b"]


def test_no_more_than_slots() -> None:
    """No request leaves without a slot for it."""
    assert taken(backlog_of(*map(request, "abc")), slots=2) == ["a", "b"]


def test_the_head_blocks_what_is_behind_it() -> None:
    """A small request does not pass a large one that does not fit."""
    assert taken(backlog_of(request("large", pages=101), request("small"))) == []


def test_pages_of_what_has_not_begun_are_spoken_for() -> None:
    """Requests that were handed over and not begun keep their pages from the next."""
    backlog = backlog_of(*(request(name, pages=40) for name in "abc"))
    assert taken(backlog) == ["a", "b"]


def test_one_plan_of_unbegun_tokens() -> None:
    """The wheel holds at most one plan's worth of unbegun prompts, and the one that fills it."""
    backlog = backlog_of(*(request(name, 60) for name in "abc"))
    assert taken(backlog) == ["a", "b"]


def test_one_request_however_long() -> None:
    """A prompt longer than a plan leaves alone."""
    assert taken(backlog_of(request("a", 5000), request("b"))) == ["a"]


def test_a_begun_request_makes_room() -> None:
    """What began no longer counts against the next."""
    first, second = request("a", 5000), request("b")
    backlog = backlog_of(first, second)
    assert taken(backlog) == ["a"]
    backlog.left_waiting(first)
    assert taken(backlog) == ["b"]


@pytest.mark.parametrize("limits", [{"pages": 0}, {"slots": 0}])
def test_a_refusal_is_remembered(limits: dict[str, int]) -> None:
    """What was kept back is not looked at again until something changed."""
    backlog = backlog_of(request("a"))
    assert taken(backlog, **limits) == []
    moves = [backlog.may_move]
    backlog.note_change()
    assert [*moves, backlog.may_move] == [False, True]


def test_an_empty_backlog_does_not_move() -> None:
    """There is nothing to hand over."""
    assert not backlog_of().may_move


def test_the_head_leaves_when_nothing_runs() -> None:
    """Whatever the estimate says, the head of an empty scheduler is handed over."""
    assert taken(backlog_of(request("a", pages=101)), must=True) == ["a"]


def test_removing_the_head_frees_the_next() -> None:
    """A cancelled head no longer blocks."""
    large = request("large", pages=101)
    backlog = backlog_of(large, request("small"))
    assert taken(backlog) == []
    backlog.remove(large)
    assert taken(backlog) == ["small"]


def test_no_limit_hands_over_all() -> None:
    """Where requests wait inside the wheel, nothing waits in front of it."""
    backlog = backlog_of(*(request(name, 60, pages=60) for name in "abc"), tokens_per_plan=None)
    assert taken(backlog, slots=0, pages=0) == ["a", "b", "c"]


def test_long_prompts_stay_out_of_the_wheel(rounds: Any) -> None:
    """Of a thousand waiting prompts of 4,000 tokens the wheel sees none it cannot begin."""
    loop = rounds(num_pages=513)
    for name in range(1001):
        loop.submit(f"r{name}", 4000, budget=3000)
    for _ in range(20):
        loop.round()
    assert (loop.driver.native.waiting_size(), loop.driver.sizes.waiting) == (0, 1000)


def test_shared_openings_run_together(rounds: Any) -> None:
    """Where prompts open alike, as many run as fit when they share those pages."""
    loop = rounds(num_pages=129)
    for number in range(8):
        prompt = [*range(1024), *range(5000 + 100 * number, 5032 + 100 * number)]
        loop.submit(f"r{number}", prompt=prompt, budget=40)
    loop.drain()
    assert max(len(plan.batch.request_ids) for plan in loop.plans if plan.batch) == 8


def test_slots_freed_by_late_rows_are_used(rounds: Any) -> None:
    """A request that waited for a slot runs once the last row of a finished one is answered."""
    loop = rounds(2, max_batch_size=1)
    requests = [loop.submit(name, budget=1) for name in "abc"]
    loop.drain(60)
    assert [len(request.tokens) for request in requests] == [1, 1, 1]


def test_small_requests_do_not_starve_a_large_one(rounds: Any) -> None:
    """A request that needs nearly all pages runs, however many small ones come after it."""
    loop = rounds(num_pages=65)
    for name in range(6):
        loop.submit(f"before{name}", budget=20)
    large = loop.submit("large", 900, budget=8)
    for number in range(200):
        loop.submit(f"after{number}", budget=20)
        loop.round()
    assert large.is_over
    assert loop.ran("after0") > 0


def test_first_chunks_follow_arrival(rounds: Any) -> None:
    """Requests of any mix of sizes begin in the order they were submitted."""
    loop = rounds(num_pages=65)
    names = [f"r{number}" for number in range(60)]
    for number, name in enumerate(names):
        loop.submit(name, (600, 3, 150, 40)[number % 4], budget=(1, 30, 5)[number % 3])
    loop.drain()
    begun = [name for plan in loop.plans if plan.batch for name in plan.batch.request_ids]
    assert list(dict.fromkeys(begun)) == names


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("num_pages", [9, 33])
def test_the_advertised_maximum_is_admitted(rounds: Any, depth: int, num_pages: int) -> None:
    """Around the limit each prompt runs or is refused; after a cancel a small one runs."""
    loop = rounds(depth, num_pages=num_pages)
    limit = loop.driver.max_request_tokens
    assert limit >= (num_pages - 3) * 16
    for num_prompt in range(limit - 33, limit + 33):
        if num_prompt + 4 > limit:
            with pytest.raises(ValueError, match=f"at most {limit} tokens"):
                loop.submit("a", num_prompt)
            continue
        request = loop.submit("a", num_prompt)
        loop.drain()
        assert len(request.tokens) == 4, num_prompt
        loop.submit("a", num_prompt)
        loop.round()
        loop.abort("a")
        small = loop.submit("b", 3)
        loop.drain()
        assert len(small.tokens) == 4


def test_a_prompt_larger_than_the_pool_is_refused(rounds: Any) -> None:
    """It is refused with the capacity in the message, and a small one behind it finishes."""
    loop = rounds(num_pages=33)
    with pytest.raises(ValueError, match="at most 495 tokens"):
        loop.submit("large", 513)
    small = loop.submit("small", 3)
    loop.drain()
    assert len(small.tokens) == 4


def test_more_requests_than_slots(rounds: Any) -> None:
    """Forty requests over eight slots all get their tokens, at most eight in a batch."""
    loop = rounds(1)
    requests = [loop.submit(f"r{number}", budget=5) for number in range(40)]
    loop.drain()
    assert {len(request.tokens) for request in requests} == {5}
    assert max(len(plan.batch.request_ids) for plan in loop.plans if plan.batch) == 8
