# SPDX-License-Identifier: MIT
"""Acceptance scenarios through the real client, over ipc; a forward takes a millisecond."""

from __future__ import annotations

import asyncio

import pytest
from attrs import evolve

from tokenspeed_core.testing import EngineSetup, request, telling_tokens
from tokenspeed_core.testing.client_reading import Answer, ask, read
from tokenspeed_core.testing.served_engine import served_engines, until
from tokenspeed_hookspecs import Engine, LogprobOptions, Plugin, Round, hookimpl

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("depth", [0, 1])]


def setup(depth: int) -> EngineSetup:
    """The usual small engine, with a device that takes its time."""
    return EngineSetup(depth=depth, plane={"forward_ms": 1.0})


async def test_a_request_generates_its_budget(depth: int) -> None:
    """The tokens of a budget of 3, with the counts; the device gave one more a forward in flight,
    and had let go of the request when its client saw the end."""
    async with served_engines(setup(depth)) as served:
        answer = await ask(served.client, request("r1", 5, budget=3))
        assert served.plane.released == [("r1", 3 + depth)]
    last = answer.chunks[-1]
    assert (answer.tokens, answer.kind) == ([1000, 1001, 1002], "length")
    assert (last.prompt_tokens, last.completion_tokens) == (5, 3)


async def test_concurrent_requests_each_get_their_own_tokens(depth: int) -> None:
    """Eight requests sent before any is read each get their own tokens."""
    async with served_engines(setup(depth)) as served:
        requests = [request(f"r{i}", 4 + i, budget=2 + i) for i in range(8)]
        streams = [await served.client.generate(each) for each in requests]
        answers = [await read(stream) for stream in streams]
    assert [answer.tokens for answer in answers] == [telling_tokens(2 + i) for i in range(8)]


async def test_an_invalid_request_finishes_with_an_abort(depth: int) -> None:
    """A top_p of 0 is refused: no tokens, one abort with the reason, and the engine serves on."""
    async with served_engines(setup(depth)) as served:
        refused = await ask(served.client, request("bad", 3, budget=3, top_p=0.0))
        good = await ask(served.client, request("good", 3, budget=3))
        assert [name for name, _ in served.plane.released] == ["good"]
    assert (refused.tokens, refused.kind, good.tokens) == ([], "abort", telling_tokens(3))
    assert refused.finish is not None
    assert refused.finish.status_code == 400
    assert "top_p" in (refused.finish.message or "")


async def test_dropping_a_stream_aborts_the_request(depth: int) -> None:
    """After one chunk the reader leaves; the device lets go of the request long before its
    budget."""
    async with served_engines(setup(depth)) as served:
        async with await served.client.generate(request("r1", 3, budget=100_000)) as stream:
            await anext(stream)
        await until(lambda: served.plane.released, limit_s=2.0)
        ((name, given),) = served.plane.released
        await served.quiet()
    assert name == "r1"
    assert given < 100


class Leaving(Plugin):
    """Notes the round in which it hears that a client left, and that of the request's end."""

    name = "leaving"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.left: dict[str, int] = {}
        self.ended: dict[str, int] = {}

    @hookimpl
    def request_aborted(self, round: Round) -> None:
        """The client is gone."""
        self.left.update(dict.fromkeys(round.aborted, round.number))

    @hookimpl
    def request_finished(self, round: Round) -> None:
        """The request has left the engine."""
        assert round.finished is not None
        self.ended[round.finished.request_id] = round.number


async def test_a_dropped_stream_is_released_within_a_round(depth: int) -> None:
    """The request ends in the round that hears of its client's leaving, or, with a forward of it
    in flight, in the one that commits it."""
    async with served_engines(evolve(setup(depth), plugins=(Leaving,))) as served:
        async with await served.client.generate(request("r1", 3, budget=100_000)) as stream:
            await anext(stream)
        await until(lambda: served.plane.released, limit_s=10.0)
        await served.quiet()
        (plugin,) = [each for each in served.engines[0].rank.plugins if each.name == "leaving"]
    leaving = plugin.instance
    assert isinstance(leaving, Leaving)
    assert leaving.ended["r1"] - leaving.left["r1"] <= depth


PROMPT_LEN, START = 600, 100


async def test_prompt_logprobs_and_alternatives_reach_the_frontend(depth: int) -> None:
    """Scores of a prompt over three chunks come once, whole and in the right layout, beside
    requests that asked for less."""
    async with served_engines(setup(depth)) as served:
        client = served.client
        scored, again, sampled = await asyncio.gather(
            ask(client, request("scored", PROMPT_LEN, budget=1, logprobs=LogprobOptions(START, 2))),
            ask(client, request("again", PROMPT_LEN, budget=1, logprobs=LogprobOptions(START, 0))),
            ask(client, request("sampled", 5, budget=3, logprobs=LogprobOptions())),
        )
    check_scored(scored)
    assert again.prompt_scores[0].values == scored.prompt_scores[0].values
    assert again.prompt_scores[0].alternatives is None
    assert again.chunks[-1].cached_tokens <= START
    (prompt,) = sampled.prompt_scores
    assert (sampled.tokens, prompt.values, prompt.token_ids) == ([1000, 1001, 1002], [None], [5])
    details = [chunk.details for chunk in sampled.chunks if chunk.details is not None]
    logprobs = [value for each in details for value in each.logprobs or ()]
    assert logprobs == pytest.approx([-1.0, -1.001, -1.002])


def check_scored(scored: Answer) -> None:
    """Values, ids and alternatives of the prompt, and of the one token."""
    (prompt,) = scored.prompt_scores
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
    assert (scored.tokens, last.details.logprobs) == ([1000], [-1.0])
    assert last.details.alternatives == [([-1.0, -2.0], [1000, 901])]
    assert last.details.finish is not None
    assert next(iter(last.details.finish.details().items())) == ("type", "length")
