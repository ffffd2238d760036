# SPDX-License-Identifier: MIT
"""What the wheel wants of its caller, each rule seen on the wheel and kept by the driver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tokenspeed_scheduler as wheel

from tokenspeed_core.errors import EngineError
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_hookspecs import Batch, CommitOutcome, RequestSpec

DEPTHS = pytest.mark.parametrize("depth", [0, 1, 2])
BARE = """
import os
os.environ["SPDLOG_LEVEL"] = "off"
import tokenspeed_scheduler as wheel
config = wheel.SchedulerConfig()
config.prefix_granularity = config.max_batch_size = 16
config.max_scheduled_tokens = 256
config.num_device_pages, config.num_snapshot_pages, config.disable_l2_cache = 65, 1, True
config.cache_groups = [wheel.CacheGroupConfig("full", 16, 65, wheel.AttnKind.Full)]
scheduler = wheel.Scheduler(config)
spec = wheel.RequestSpec()
spec.request_id, spec.tokens, spec.max_new_tokens = "a", list(range(1, {num_prompt} + 1)), 8
scheduler.submit_requests([spec])
scheduler.next_execution_plan()
answer = wheel.ForwardEvent.ExtendResult()
answer.request_id, answer.tokens = "a", {tokens}
for _ in range({times}):
    events = wheel.ExecutionEvent()
    events.add_event(answer)
    scheduler.advance(events)
"""


def bare(**changes: object) -> subprocess.CompletedProcess[str]:
    """The bare wheel in a process of its own, answering one row."""
    code = BARE.format(**{"num_prompt": 40, "tokens": [7], "times": 1, **changes})
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def begun(rounds: Any, **options: Any) -> tuple[NativeScheduler, Batch]:
    """A driver with one request and its first batch, unanswered."""
    loop = rounds()
    loop.submit("a", **options)
    return loop.driver, next_batch(loop.driver)


def next_batch(driver: NativeScheduler) -> Batch:
    """The batch of the next plan."""
    batch = driver.plan().batch
    assert batch is not None
    return batch


def ending(end: str, token: int) -> CommitOutcome:
    """One row, whose request ends so."""
    return CommitOutcome([token], finished=[0] * (end == "finish"), aborted=[0] * (end == "abort"))


def test_one_answer_per_row_is_fine() -> None:
    """The bare wheel takes the one answer a row owes."""
    assert bare().returncode == 0


def test_a_second_answer_kills_the_bare_wheel() -> None:
    """The bare wheel ends the process when a row is answered twice."""
    assert bare(times=2).returncode < 0


def test_a_second_answer_is_refused(rounds: Any) -> None:
    """The driver refuses to answer a batch twice, and the scheduler lives on."""
    driver, batch = begun(rounds)
    driver.commit(batch, CommitOutcome([7]))
    with pytest.raises(EngineError, match="answered before"):
        driver.commit(batch, CommitOutcome([7]))
    driver.advance()
    assert driver.plan().batch is not None


def test_a_batch_from_elsewhere_is_refused(rounds: Any) -> None:
    """A batch of another driver is not answered."""
    driver, _ = begun(rounds)
    _, other = begun(rounds)
    with pytest.raises(EngineError, match="never came from a plan"):
        driver.commit(other, CommitOutcome([7]))


def test_batches_are_answered_oldest_first(rounds: Any) -> None:
    """The younger of two forwards in flight cannot be answered first."""
    driver, _ = begun(rounds)
    younger = next_batch(driver)
    with pytest.raises(EngineError, match="older forward"):
        driver.commit(younger, CommitOutcome([7]))


def test_a_token_inside_a_prompt_raises_in_the_bare_wheel() -> None:
    """The bare wheel raises for a token on a chunk that does not complete its prompt."""
    assert "intermediate prefill chunk" in bare(num_prompt=300).stderr


@pytest.mark.parametrize("outcome", [CommitOutcome([7]), CommitOutcome([-1], more={0: [7, 8]})])
def test_a_token_inside_a_prompt_is_refused(rounds: Any, outcome: CommitOutcome) -> None:
    """The driver refuses a token on such a chunk, and the empty answer still goes through."""
    driver, batch = begun(rounds, num_prompt=300)
    with pytest.raises(EngineError, match="row 0 of request 'a'"):
        driver.commit(batch, outcome)
    driver.commit(batch, CommitOutcome([-1]))
    driver.advance()
    assert driver.plan().batch is not None


def test_a_finish_inside_a_prompt_is_refused(rounds: Any) -> None:
    """A request inside its prompt can be aborted, not finished."""
    driver, batch = begun(rounds, num_prompt=300)
    with pytest.raises(EngineError, match="only an abort"):
        driver.commit(batch, CommitOutcome([-1], finished=[0]))
    driver.commit(batch, CommitOutcome([-1], aborted=[0]))
    driver.advance()
    assert driver.sizes.active_pages == 0


@pytest.mark.parametrize("tokens", [[], [7, 7]])
def test_each_row_is_answered(rounds: Any, tokens: list[int]) -> None:
    """An outcome with too few or too many rows is refused."""
    driver, batch = begun(rounds)
    with pytest.raises(EngineError, match="one token per row of a batch of 1"):
        driver.commit(batch, CommitOutcome(tokens))


def test_a_row_ends_once(rounds: Any) -> None:
    """A row cannot both finish and be aborted."""
    driver, batch = begun(rounds)
    with pytest.raises(EngineError, match="end once"):
        driver.commit(batch, CommitOutcome([7], finished=[0], aborted=[0]))


@pytest.mark.parametrize("late", [{"tokens": [7]}, {"tokens": [-1], "finished": [0]}])
def test_a_late_row_says_nothing(rounds: Any, late: dict[str, Any]) -> None:
    """A row of a request that ended takes neither token nor end."""
    driver, first = begun(rounds)
    second = next_batch(driver)
    driver.commit(first, CommitOutcome([7], finished=[0]))
    with pytest.raises(EngineError, match="its request ended before"):
        driver.commit(second, CommitOutcome(**late))


@DEPTHS
@pytest.mark.parametrize("num_prompt", [40, 522])
def test_every_page_comes_back(rounds: Any, depth: int, num_prompt: int) -> None:
    """Chunks inside a prompt and late rows are answered: nothing stays pinned at any depth."""
    loop = rounds(depth)
    loop.submit("a", num_prompt)
    loop.drain()
    assert loop.driver.can_clear_cache()
    assert loop.driver.native.available_lcm_blocks() == 512


@DEPTHS
@pytest.mark.parametrize(("num_prompt", "chunks"), [(40, 1), (522, 3)])
def test_forwards_of_a_request(rounds: Any, depth: int, num_prompt: int, chunks: int) -> None:
    """A budget of 3 over k chunks runs 2 + k forwards, and as many more as the depth."""
    loop = rounds(depth)
    request = loop.submit("a", num_prompt, budget=3)
    loop.drain()
    assert (loop.ran("a"), len(request.tokens)) == (2 + chunks + depth, 3)


def test_a_decode_row_reserves_what_it_made(rounds: Any) -> None:
    """Of two requests alike, the one that made ten tokens gets pages for ten more."""
    loop = rounds(decode_width=4)
    loop.submit("a", 31, budget=500, declared=0)
    loop.submit("b", 31, budget=500, declared=0)
    loop.round()
    batch = loop.driver.plan().batch
    loop.driver.commit(batch, CommitOutcome([7, 7], more={0: list(range(10))}))
    loop.driver.advance()
    table = loop.driver.plan().batch.block_tables["full"]  # for 42 + 4 and 33 + 4 tokens
    assert (table > 0).sum(axis=1).tolist() == [4, 3]


@pytest.mark.parametrize(("end", "cached"), [("finish", 79), ("abort", 0)])
def test_a_finish_shares_its_pages(rounds: Any, end: str, cached: int) -> None:
    """A finish publishes what a request made; after an abort nothing of it can be hit."""
    driver, batch = begun(rounds, num_prompt=78)
    driver.commit(batch, CommitOutcome([7]))
    driver.advance()
    driver.commit(next_batch(driver), ending(end, 8))
    driver.advance()
    driver.submit([RequestSpec("b", [*range(1000, 1078), 7, 8, 9], 4)])
    assert next_batch(driver).extend_prefix_lens == [cached]


@pytest.mark.parametrize("end", ["finish", "abort"])
def test_an_ended_id_is_free_after_the_next_plan(rounds: Any, end: str) -> None:
    """An id that just ended is refused until one more plan was made."""
    driver, batch = begun(rounds)
    driver.commit(batch, ending(end, 7))
    driver.advance()
    assert not driver.has_room_for("a")
    with pytest.raises(ValueError, match="still ended"):
        driver.submit([RequestSpec("a", [1, 2], 4)])
    driver.plan()
    assert driver.has_room_for("a")
    driver.submit([RequestSpec("a", [1, 2], 4)])
    assert driver.plan().batch is not None


def test_the_bare_wheel_refuses_an_id_that_just_ended(rounds: Any) -> None:
    """Between its end and the next plan the wheel itself calls the id a duplicate."""
    driver, batch = begun(rounds)
    driver.commit(batch, CommitOutcome([7], finished=[0]))
    driver.advance()
    spec = wheel.RequestSpec()
    spec.request_id, spec.tokens = "a", [1, 2]
    native: Any = driver.native
    with pytest.raises(ValueError, match="duplicate"):
        native.submit_requests([spec])


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (RequestSpec("b", [], 4), "expected a prompt"),
        (RequestSpec("b", [1], -1), "budget of 0"),
        (RequestSpec("a", [1], 4), "is still backlog"),
        (RequestSpec("b", range(8172), 4), "at most 8175 tokens of prompt and budget, got 8176"),
        (RequestSpec("b", range(8175), 0), "got 8176"),
        (RequestSpec("b", [1 << 40], 4), "32-bit token ids"),
    ],
)
def test_what_a_request_must_be(rounds: Any, spec: RequestSpec, text: str) -> None:
    """What the wheel would refuse raises ValueError, and none of the same call is taken."""
    loop = rounds()
    loop.submit("a")
    with pytest.raises(ValueError, match=text):
        loop.driver.submit([RequestSpec("good", [1], 1), spec])
    assert loop.driver.sizes.waiting == 1


def test_one_id_twice_in_a_call(rounds: Any) -> None:
    """Two requests of one submission cannot share an id."""
    with pytest.raises(ValueError, match="'a' twice"):
        rounds().driver.submit([RequestSpec("a", [1], 1), RequestSpec("a", [2], 1)])


def test_events_of_unknown_requests_are_ignored(rounds: Any) -> None:
    """A plugin's event for a request that is gone changes nothing."""
    loop = rounds()
    event = wheel.ForwardEvent.Abort()
    event.request_id = "nobody"
    loop.driver.queue_events([event])
    loop.driver.advance()
    assert not loop.driver.has_work


def test_nothing_queued_is_no_call(rounds: Callable[..., Any]) -> None:
    """Advancing without events does not reach the wheel."""
    driver = rounds().driver
    driver._wheel = None
    driver.advance()
    driver.advance_head(None, [])
