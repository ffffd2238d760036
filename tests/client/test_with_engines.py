# SPDX-License-Identifier: MIT
"""The client and real engines under load, aborts and ends, over ipc."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections import Counter

import psutil
import pytest

from tokenspeed_core.testing import EngineSetup, request, telling_tokens
from tokenspeed_core.testing.client_reading import Answer, ask, read, soon
from tokenspeed_core.testing.served_engine import ServedEngine, served_engines, until
from tokenspeed_core.testing.wire_engine import bound_client
from tokenspeed_hookspecs import (
    ChunkStream,
    ControlRequest,
    EngineUnavailableError,
    LogprobOptions,
)

pytestmark = pytest.mark.anyio
SLOW = {"forward_ms": 1.0}


async def test_two_thousand_streams_share_the_sockets() -> None:
    """Descriptors stay as many as before, and every stream gets its tokens."""
    async with served_engines(EngineSetup(scheduler={"max_batch_size": 64})) as served:
        gc.collect()  # sockets of earlier tests
        before = psutil.Process().num_fds()
        streams = [await served.client.generate(request(f"r{i}", 5, budget=3)) for i in range(2000)]
        during = psutil.Process().num_fds()
        answers = [await read(stream) for stream in streams]
    assert during <= before
    assert all(answer.tokens == telling_tokens(3) for answer in answers)


@pytest.mark.parametrize("count", [8_190, 8_191, 8_192, 30_000])
async def test_large_frames_arrive_whole(count: int) -> None:
    """Prompts and their scores of around and beyond 64 KiB come back as they were sent."""
    setup = EngineSetup(scheduler={"num_pages": 2001}, plane={"max_model_len": 40_000})
    async with served_engines(setup) as served:
        prompt = [random.Random(count).randrange(1, 100_000) for _ in range(count)]
        answer = await ask(
            served.client, request("r1", prompt, budget=1, logprobs=LogprobOptions(0))
        )
        (scored,) = answer.prompt_scores
    assert scored.token_ids == prompt
    assert scored.values[1:] == pytest.approx([-(p + 1) / 10 for p in range(count - 1)])


@pytest.mark.parametrize("depth", [0, 1])
async def test_hundreds_of_clients_that_leave_at_once_harm_nobody(depth: int) -> None:
    """Each leaves around its request's own end; all of it is released once, and a healthy request
    has its tokens."""
    async with served_engines(EngineSetup(depth=depth)) as served:
        leaving = [await served.client.generate(request(f"r{i}", 5, budget=2)) for i in range(500)]
        staying = await served.client.generate(request("stays", 5, budget=50))
        for i, stream in enumerate(leaving):
            if i % 3:
                await anext(stream)
            await stream.aclose()
        assert (await read(staying)).tokens == telling_tokens(50)
        await served.quiet()
        released = Counter(name for name, _ in served.plane.released)
    assert max(released.values()) == 1


async def test_what_was_not_begun_is_never_forwarded() -> None:
    """A client that leaves while its request is queued costs no forward."""
    setup = EngineSetup(scheduler={"max_batch_size": 1}, plane=SLOW)
    async with served_engines(setup) as served:
        running = await served.client.generate(request("running", 5, budget=60))
        first = await anext(running)
        queued = await served.client.generate(request("queued", 5, budget=60))
        await queued.aclose()
        assert [*first.token_ids, *(await read(running)).tokens] == telling_tokens(60)
        await served.quiet()
        forwarded = {name for batch in served.plane.batches for name in batch.request_ids}
    assert forwarded == {"running"}


async def _outcome(stream: ChunkStream) -> Answer | EngineUnavailableError:
    try:
        return await read(stream)
    except EngineUnavailableError as error:
        return error


async def test_an_engine_that_stops_leaves_no_stream_open() -> None:
    """A hundred requests in every state end when their engine does, with one and the same error."""
    async with served_engines(EngineSetup(plane=SLOW)) as served:
        streams = [
            await served.client.generate(request(f"r{i}", 40, budget=500)) for i in range(100)
        ]
        outcomes = asyncio.gather(*(_outcome(stream) for stream in streams))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(served.engines[0].cut_off)
        ends = await outcomes
    assert {type(end) for end in ends} == {EngineUnavailableError}
    assert len({id(end) for end in ends}) == 1


async def test_a_client_that_is_gone_leaves_nothing_running() -> None:
    """When the client closes, its engine releases every request and waits for another client."""
    async with served_engines(EngineSetup(plane=SLOW)) as served:
        streams = [await served.client.generate(request(f"r{i}", 5, budget=3000)) for i in range(9)]
        await anext(streams[0])
        # What a client sent last before its end may never arrive.
        await until(lambda: len(served.engines[0].loop.requests) == 9)
        await served.client.aclose()
        await served.quiet()
        assert len(served.plane.released) == 9
        served.client.bind()
        await served.client.accept()
        assert (await ask(served.client, request("r0", 5, budget=3))).tokens == telling_tokens(3)


async def test_a_restarted_engine_serves_the_same_client() -> None:
    """Another engine at the same addresses, and the client goes on."""
    async with served_engines() as served:
        await asyncio.to_thread(served.engines[0].cut_off)
        await until(lambda: served.client.failure is not None)
        address = served.client.bind().handshake
        again = ServedEngine(EngineSetup(), address)
        again.start()
        served.engines.append(again)
        await served.client.accept()
        assert (await ask(served.client, request("r1", 5, budget=3))).tokens == telling_tokens(3)


async def test_requests_spread_over_engines_and_controls_reach_all() -> None:
    """Two engines share the requests of one client, each with its own load, and both answer."""
    async with served_engines(count=2) as served:
        answers = await asyncio.gather(
            *(ask(served.client, request(f"r{i}", 5, budget=3)) for i in range(6)),
            ask(served.client, request("pinned", 5, budget=3), rank=1),
        )
        replies = await served.client.control(ControlRequest("flush_cache"))
        shares = [len(engine.plane.released) for engine in served.engines]
        assert all(served.client.loads)
    assert all(answer.tokens == telling_tokens(3) for answer in answers)
    assert [reply.success for reply in replies] == [True, True]
    assert shares == [3, 4]


ENGINE = """
import sys
from tokenspeed_core.testing import EngineSetup, ServedEngine
engine = ServedEngine(EngineSetup(plane={"forward_ms": 1.0}), sys.argv[1])
engine.start()
sys.stdin.read()
"""


async def test_a_killed_engine_ends_its_streams_soon() -> None:
    """SIGKILL in the middle of a stream: no notice comes, and the client still knows."""
    async with bound_client() as client:
        command = (sys.executable, "-c", ENGINE, client.addresses.handshake)
        engine = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        await client.accept()
        stream = await client.generate(request("r1", 5, budget=3000))
        await anext(stream)
        engine.kill()
        end = await soon(_outcome(stream), limit_s=20.0)  # silence would take minutes
        await engine.wait()
    assert isinstance(end, EngineUnavailableError)
    assert "engine 0 counts as dead" in str(client.failure)
