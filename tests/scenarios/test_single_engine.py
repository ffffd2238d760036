# SPDX-License-Identifier: MIT
"""The acceptance scenarios of one rank, with their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenspeed_core.testing import (
    Chunk,
    EngineFixture,
    EngineSetup,
    ManualFrontend,
    ScriptedFrontend,
    Stream,
    Tiers,
    request,
    scripted_engine,
    telling_tokens,
)
from tokenspeed_hookspecs import (
    CacheOperationKind,
    LogprobOptions,
    Message,
    PromptLogprobs,
)

both_depths = pytest.mark.parametrize("depth", [0, 1])


@both_depths
def test_a_request_generates_its_budget(depth: int) -> None:
    """A budget of 3 gives 3 tokens; the device gave one more a forward in flight, and had let go
    of the request before its last chunk left."""
    at_end: list[list[tuple[str, int]]] = []

    def note_released(_: str, chunk: Chunk) -> Sequence[Message]:
        if chunk.finish is not None:
            at_end.append(list(engine.plane.released))
        return ()

    engine = scripted_engine(depth=depth, frontend=ManualFrontend(note_released))
    engine.add("r1", 5, budget=3)
    (stream,) = engine.run_to_end("r1")
    last = stream.chunks[-1]
    assert (stream.tokens, stream.kind) == ([1000, 1001, 1002], "length")
    assert (last.prompt_tokens, last.completion_tokens) == (5, 3)
    assert at_end == [[("r1", 3 + depth)]]
    engine.to_idle()


@both_depths
def test_a_stop_token_ends_a_request(depth: int) -> None:
    """The stop token is delivered and ends the request long before its budget."""
    engine = scripted_engine(depth=depth)
    engine.add("r1", 3, budget=10, stop_token_ids=(1002,))
    (stream,) = engine.run_to_end("r1")
    assert (stream.tokens, stream.kind) == ([1000, 1001, 1002], "stop")
    assert stream.finish is not None
    assert stream.finish.details() == {"type": "stop", "matched": 1002}
    engine.to_idle()


@both_depths
def test_a_long_prompt_is_prefilled_in_chunks(depth: int) -> None:
    """A prompt of 522 tokens runs as 256, 256 and 10; what chunks sample never appears."""
    engine = scripted_engine(depth=depth)
    engine.add("long", 522, budget=2)
    (stream,) = engine.run_to_end("long")
    assert stream.tokens == [1000, 1001]
    assert [batch.num_tokens for batch in engine.plane.batches][:3] == [256, 256, 10]
    assert engine.plane.released == [("long", 2 + depth)]
    engine.to_idle()


@both_depths
def test_concurrent_requests_each_get_their_own_tokens(depth: int) -> None:
    """Eight requests that share forwards each get their own tokens, budget by budget."""
    engine = scripted_engine(depth=depth)
    names = [f"r{i}" for i in range(8)]
    for i, name in enumerate(names):
        engine.add(name, 4 + i, budget=2 + i)
    for i, stream in enumerate(engine.run_to_end(*names)):
        assert stream.tokens == telling_tokens(2 + i), stream.request_id
    assert max(len(batch.request_ids) for batch in engine.plane.batches) == 8
    engine.to_idle()


@both_depths
def test_an_invalid_request_finishes_with_an_abort(depth: int) -> None:
    """A top_p of 0 is refused: no tokens, one abort, and the data plane never hears of it."""
    engine = scripted_engine(depth=depth)
    engine.add("bad", 3, budget=3, top_p=0.0)
    (stream,) = engine.run_to_end("bad")
    assert (stream.tokens, stream.kind) == ([], "abort")
    assert engine.plane.released == []
    engine.to_idle()


@both_depths
def test_dropping_a_stream_aborts_the_request(depth: int) -> None:
    """An abort after the first chunk releases the request with few tokens, and sends nothing."""
    engine = scripted_engine(depth=depth)
    engine.add("r1", 3, budget=100_000)
    engine.run_until(lambda: engine.received["r1"].chunks)
    engine.abort("r1")
    engine.run_until(lambda: engine.plane.released, max_rounds=depth + 2)
    ((name, given),) = engine.plane.released
    assert (name, engine.received["r1"].finish) == ("r1", None)
    assert given <= 3 + depth
    engine.to_idle()


PROMPT_LEN, START = 600, 100


def _prompt_parts(stream: Stream) -> list[PromptLogprobs]:
    details = [chunk.details for chunk in stream.chunks if chunk.details is not None]
    return [each.prompt for each in details if each.prompt is not None]


def _run_scored(depth: int) -> list[Stream]:
    engine = scripted_engine(depth=depth)
    for name, top in (("scored", 2), ("again", 0)):
        wanted = LogprobOptions(START, top)
        engine.put(request(name, PROMPT_LEN, budget=1, logprobs=wanted))
    engine.put(request("sampled", 5, budget=3, logprobs=LogprobOptions()))
    streams = engine.run_to_end("scored", "sampled", "again")
    engine.to_idle()
    return streams


@both_depths
def test_prompt_logprobs_and_alternatives_reach_the_frontend(depth: int) -> None:
    """A prompt over three chunks ships its scores once, in the layout the wire knows."""
    scored, _, _ = _run_scored(depth)
    (prompt,) = _prompt_parts(scored)
    assert prompt.values[0] is None
    assert prompt.values[1:] == pytest.approx([-(p + 1) / 10 for p in range(100, 599)])
    assert prompt.token_ids == list(range(101, 601))
    assert prompt.alternatives is not None
    first, second = prompt.alternatives[:2]
    assert first is None
    assert second is not None
    assert second[0] == pytest.approx([-10.1, -11.1])
    assert second[1] == [102, 901]
    last = scored.chunks[-1]
    assert last.details is not None
    assert (last.tokens, last.details.logprobs) == ([1000], [-1.0])
    assert last.details.alternatives == [([-1.0, -2.0], [1000, 901])]
    assert scored.finish is not None
    assert next(iter(scored.finish.details().items())) == ("type", "length")


@both_depths
def test_a_default_start_ships_the_last_prompt_token(depth: int) -> None:
    """Scores from the default start need no prompt row; nobody who asked for none gets
    alternatives."""
    _, sampled, _ = _run_scored(depth)
    (prompt,) = _prompt_parts(sampled)
    assert (sampled.tokens, prompt.values, prompt.token_ids) == ([1000, 1001, 1002], [None], [5])
    assert prompt.alternatives is None
    assert sampled.logprobs == pytest.approx([-1.0, -1.001, -1.002])
    details = [chunk.details for chunk in sampled.chunks]
    assert all(each is not None and each.alternatives is None for each in details)


@both_depths
def test_the_prefix_cache_leaves_scored_positions_alone(depth: int) -> None:
    """The same prompt again is served from the cache up to its first scored position at most."""
    scored, _, again = _run_scored(depth)
    assert _prompt_parts(again)[0].values == _prompt_parts(scored)[0].values
    assert again.chunks[-1].cached_tokens <= START


@both_depths
def test_retracted_requests_resume_where_they_stopped(depth: int) -> None:
    """With a retraction forced every three plans each request still gets exactly its tokens."""
    engine = scripted_engine(depth=depth, tiers=Tiers.FORCED_RETRACTION)
    names = [f"r{i}" for i in range(4)]
    for i, name in enumerate(names):
        engine.add(name, 20 + i, budget=12 + i)
    for i, stream in enumerate(engine.run_to_end(*names)):
        assert stream.tokens == telling_tokens(12 + i), stream.request_id
    engine.to_idle()
    stores = engine.count(CacheOperationKind.SNAPSHOT)
    assert stores > 0
    assert engine.count(CacheOperationKind.RESTORE) == stores


@both_depths
def test_written_back_prefixes_are_acknowledged(depth: int) -> None:
    """Requests with a common prefix run while it is written back to the host tier."""
    engine = scripted_engine(depth=depth, tiers=Tiers.HOST)
    names = [f"r{i}" for i in range(3)]
    for i, name in enumerate(names):
        engine.add(name, [*range(1, 65), 100 + i], budget=4)
    for stream in engine.run_to_end(*names):
        assert stream.tokens == [1000, 1001, 1002, 1003], stream.request_id
    assert engine.count(CacheOperationKind.WRITE_BACK) > 0
    engine.to_idle()


@both_depths
def test_an_engine_stops_once_its_frontend_is_gone(depth: int) -> None:
    """A script of one batch with one request: the loop ends by itself, after the round that read
    it, and without an error."""
    frontend = ScriptedFrontend([[request("r1", 5, budget=3)]])
    engine = EngineFixture(EngineSetup(depth=depth, frontend=frontend))
    engine.loop.run(lambda: False)
    assert engine.loop.last_round.number == 1
    engine.rank.stop()
