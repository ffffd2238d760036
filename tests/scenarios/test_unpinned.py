# SPDX-License-Identifier: MIT
"""What the acceptance scenarios imply and none of them pins."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tokenspeed_core.testing import (
    EngineFixture,
    EngineSetup,
    RowFault,
    Tiers,
    request,
    scripted_engine,
    telling_tokens,
)
from tokenspeed_hookspecs import AbortRequests, LogprobOptions, SchedulerSettings

every_depth = pytest.mark.parametrize("depth", [0, 1, 2])


@every_depth
@pytest.mark.parametrize("prompt", [5, 522], ids=["one chunk", "three chunks"])
def test_late_and_mid_chunk_rows_are_acknowledged(depth: int, prompt: int) -> None:
    """Once a request is gone the cache can be cleared: each of its rows was answered."""
    engine = scripted_engine(depth=depth)
    engine.add("r1", prompt, budget=3)
    engine.run_to_end("r1")
    engine.to_idle()


@every_depth
def test_a_stop_token_on_the_last_token_of_the_budget_is_a_length(depth: int) -> None:
    """A stop token that is also the budget's last token ends the request by length."""
    engine = scripted_engine(depth=depth)
    engine.add("r1", 3, budget=3, stop_token_ids=(1002,))
    (stream,) = engine.run_to_end("r1")
    assert stream.finish is not None
    assert stream.finish.details() == {"type": "length", "length": 3}
    engine.to_idle()


@every_depth
def test_a_nan_on_a_mid_chunk_row_ends_the_request_at_its_prompts_end(depth: int) -> None:
    """NaN in a chunk is kept until the prompt completes, and then it is a numerical abort."""
    engine = scripted_engine(depth=depth)
    engine.plane.faults.at_chunk("r1", 256, fault=RowFault(is_nan=True))
    engine.add("r1", 522, budget=5)
    engine.add("r2", 3, budget=5)
    bad, good = engine.run_to_end("r1", "r2")
    assert bad.finish is not None
    assert (bad.tokens, bad.kind, bad.finish.error_type) == ([], "abort", 523)
    assert good.tokens == telling_tokens(5)
    engine.to_idle()


@every_depth
def test_a_nan_after_an_abort_still_publishes_nothing(depth: int) -> None:
    """A request aborted by its client whose next row is NaN ends silently; what it generated is
    never a prefix of another."""
    engine = scripted_engine(depth=depth)
    prompt = list(range(1, 63))
    engine.plane.faults.at_token("r1", 2, fault=RowFault(is_nan=True))
    engine.add("r1", prompt, budget=50)
    # The abort is read in the round that dispatches, or commits, the NaN row.
    engine.run_until(lambda: len(engine.received["r1"].tokens) == 2)
    engine.abort("r1")
    engine.run_until(lambda: engine.plane.released)
    assert engine.received["r1"].finish is None
    engine.add("r2", [*prompt, *telling_tokens(8)], budget=2)
    (after,) = engine.run_to_end("r2")
    assert after.chunks[-1].cached_tokens < 64
    engine.to_idle()


@every_depth
def test_finish_details_have_no_keys_that_do_not_apply(depth: int) -> None:
    """A length has its two keys, a refusal its message, code and error type, and no more."""
    engine = scripted_engine(depth=depth)
    engine.add("long", 3, budget=2)
    engine.add("bad", [], budget=2)
    long, bad = engine.run_to_end("long", "bad")
    assert long.finish is not None
    assert bad.finish is not None
    assert list(long.finish.details()) == ["type", "length"]
    assert list(bad.finish.details()) == ["type", "message", "status_code", "err_type"]
    engine.to_idle()


@every_depth
def test_absent_alternatives_are_not_empty_ones(depth: int) -> None:
    """Only a request that asked for alternatives has the field, in a batch with one that did."""
    engine = scripted_engine(depth=depth)
    engine.put(request("with", 3, budget=3, logprobs=LogprobOptions(top=1)))
    engine.put(request("without", 3, budget=3, logprobs=LogprobOptions()))
    engine.add("plain", 3, budget=3)
    asked, scored, plain = engine.run_to_end("with", "without", "plain")
    fields = [[c.details and c.details.alternatives for c in s.chunks] for s in (asked, scored)]
    assert [ids for found in fields[0] for _, ids in found or ()] == [[1000], [1001], [1002]]
    assert fields[1] == [None] * 3
    assert [chunk.details is not None for chunk in plain.chunks] == [False, False, True]
    engine.to_idle()


def _engine(depth: int) -> EngineFixture:
    """A small pool: two long requests do not fit side by side."""
    return scripted_engine(depth=depth, tiers=Tiers.FORCED_RETRACTION)


STATES: Mapping[str, Callable[[EngineFixture], object]] = {
    "in the batch of its add": lambda engine: engine.rounds(0),
    "waiting or prefilling": lambda engine: engine.rounds(1),
    "between chunks": lambda engine: engine.rounds(2),
    "decoding": lambda engine: engine.run_until(lambda: engine.received["r1"].tokens),
    "retracted": lambda engine: engine.run_until(lambda: engine.scheduler.sizes.retracted),
    "restored": lambda engine: engine.run_until(
        lambda: engine.plane.operations.total() >= 2 and not engine.scheduler.sizes.retracted
    ),
}


@every_depth
@pytest.mark.parametrize("state", STATES)
def test_an_abort_ends_a_request_once_in_every_state(depth: int, state: str) -> None:
    """Wherever the abort finds it, the request is released once, sent nothing more, and its
    neighbour keeps its tokens."""
    engine = _engine(depth)
    engine.add("r1", 522, budget=60)
    engine.add("r2", 20, budget=60)
    STATES[state](engine)
    engine.abort("r1")
    (other,) = engine.run_to_end("r2")
    assert other.tokens == telling_tokens(60)
    engine.to_idle()
    assert [name for name, _ in engine.plane.released].count("r1") == 1
    assert engine.received["r1"].finish is None


@every_depth
@pytest.mark.parametrize("at_round", range(8))
def test_an_abort_around_the_end_of_a_prompt_of_whole_pages(depth: int, at_round: int) -> None:
    """An abort in any round of a chunked prompt that fills its last page ends it once; the rows
    that are still out are answered, and the engine serves on."""
    engine = scripted_engine(depth=depth, scheduler={"max_scheduled_tokens": 16})
    engine.add("r1", 64, budget=20)
    engine.rounds(at_round)
    engine.abort("r1")
    engine.to_idle()
    engine.add("r2", 64, budget=3)
    (stream,) = engine.run_to_end("r2")
    assert stream.tokens == telling_tokens(3)
    engine.to_idle()


@every_depth
def test_an_abort_of_a_withheld_request_ends_it_with_the_pause(depth: int) -> None:
    """A request that a freeze withholds and its client gave up ends once the freeze does."""
    engine = scripted_engine(depth=depth)
    engine.loop.controls.pause("keep")
    engine.add("r1", 5, budget=5)
    engine.rounds(3)
    engine.abort("r1")
    engine.rounds(3)
    assert engine.plane.released == []
    engine.loop.controls.resume()
    engine.to_idle()
    assert engine.plane.released == [("r1", 0)]
    assert not engine.received["r1"].chunks


@every_depth
def test_an_end_between_rounds_leaves_in_the_next(depth: int) -> None:
    """What ends a request after a round's outputs left is sent and released by the next round."""
    engine = scripted_engine(depth=depth, scheduler={"max_batch_size": 1})
    for name in ("running", "queued"):
        engine.add(name, 5, budget=9)
    engine.rounds(2)
    engine.loop.requests.abort("queued", "ended outside")
    running, queued = engine.run_to_end("running", "queued")
    assert queued.finish is not None
    assert (queued.finish.message, running.tokens) == ("ended outside", telling_tokens(9))
    engine.to_idle()


@every_depth
def test_an_abort_before_its_add_ends_the_request(depth: int) -> None:
    """An abort that overtakes its add in the same batch is remembered: no forward names the id."""
    engine = scripted_engine(depth=depth)
    engine.put(AbortRequests(("r1",)), request("r1", 5, budget=5))
    engine.to_idle()
    assert engine.plane.released == [("r1", 0)]
    assert not engine.received["r1"].chunks


@every_depth
@pytest.mark.parametrize("gap", range(4))
def test_a_duplicate_id_leaves_the_first_alone(depth: int, gap: int) -> None:
    """A live request's id sent again, in the same batch or later, changes nothing for it."""
    engine = scripted_engine(depth=depth)
    engine.add("r1", 5, budget=9)
    engine.rounds(gap)
    engine.add("r1", 7, budget=2)
    (stream,) = engine.run_to_end("r1")
    assert (stream.tokens, stream.chunks[-1].prompt_tokens) == (telling_tokens(9), 5)
    engine.to_idle()


@every_depth
@pytest.mark.parametrize("prompt", [4096, 9000])
def test_an_over_long_prompt_ends_alone(depth: int, prompt: int) -> None:
    """A prompt past the context length, or past the cache, is refused with the limit."""
    engine = scripted_engine(depth=depth)
    engine.add("long", prompt, budget=3)
    engine.add("r1", 5, budget=3)
    long, good = engine.run_to_end("long", "r1")
    assert long.finish is not None
    assert long.finish.message is not None
    assert (long.kind, good.tokens) == ("abort", telling_tokens(3))
    assert "4095 tokens" in long.finish.message
    engine.to_idle()


def test_the_setup_names_its_settings() -> None:
    """The usual set-up is the one the scenarios' numbers belong to."""
    settings = EngineSetup().config().scheduler.settings()
    wanted = SchedulerSettings(
        page_size=16, num_pages=513, max_batch_size=8, max_scheduled_tokens=256
    )
    assert settings == wanted
