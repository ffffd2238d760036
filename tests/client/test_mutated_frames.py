# SPDX-License-Identifier: MIT
"""Frames that went wrong, on each socket of the client; they kill nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from tokenspeed_core.testing import request
from tokenspeed_core.testing.client_reading import read
from tokenspeed_core.testing.served_engine import until
from tokenspeed_core.testing.wire_engine import WireEngine, bound_client, wire_engines
from tokenspeed_core.wire.control import pack_reply
from tokenspeed_core.wire.handshake import ParallelSizes, pack_ready, pack_status
from tokenspeed_core.wire.outputs import pack_own_batch
from tokenspeed_hookspecs import (
    ChunkDetails,
    ControlReply,
    FinishKind,
    FinishReason,
    Load,
    OutputBatch,
    PromptLogprobs,
)

pytestmark = pytest.mark.anyio
COUNT = 1000


def outputs() -> list[bytes]:
    """A message of each kind an engine sends, with everything in it that may be."""
    scores = PromptLogprobs([None, -0.5], [1, 2], [None, ([-0.5], [2])])
    finish = FinishReason(FinishKind.ABORT, message="why", status_code=400, error_type=521)
    details = ChunkDetails(finish, [-0.1, -0.2], [([-0.1], [5]), ([-0.2], [6])], scores)
    batch = OutputBatch(["x", "y"], [5, 6, 7], [2, 1], [3, 3], [2, 1], [0, 0], {0: details})
    return [
        pack_own_batch(batch, Load(1, 2, 3, 4), engine_index=0),
        pack_reply(ControlReply("pause", True, "done", {"more": [1, {"deep": None}]}), 0),
        pack_reply(ControlReply("own", False, "why", {"value": 1.5}), 0),
    ]


def mutated(frame: bytes, dice: random.Random) -> bytes:
    """The frame cut, lengthened, with bytes changed, or its parts swapped."""
    at = dice.randrange(len(frame) + 1)
    kind = dice.randrange(4)
    if kind == 0:
        return frame[:at]
    if kind == 1:
        return frame[:at] + dice.randbytes(dice.randrange(1, 9)) + frame[at:]
    if kind == 2:
        return frame[at:] + frame[:at]
    changed = bytearray(frame)
    for _ in range(dice.randrange(1, 4)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed)


def messages(frames: Sequence[bytes], seed: int) -> list[list[bytes]]:
    """So many messages of mutated frames, now and then of several."""
    dice = random.Random(seed)
    return [
        [mutated(dice.choice(frames), dice) for _ in range(dice.choice([1, 1, 1, 2, 3]))]
        for _ in range(COUNT)
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_mutated_outputs_kill_nothing(seed: int) -> None:
    """A stream that runs meanwhile has its tokens, and none of the event loop's callbacks fails."""
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with wire_engines() as (client, (engine,)):
        stream = await client.generate(request("healthy", 3))
        for number, frames in enumerate(messages(outputs(), seed)):
            await engine.send_frames(*frames)
            if number % 100 == 0:
                await engine.send({"healthy": [number]})
        await engine.send({"healthy": [7]}, finish=FinishKind.STOP)
        answer = await read(stream)
        assert client.num_dropped > COUNT // 2
    assert answer.tokens == [*range(0, COUNT, 100), 7]
    assert failed == []


async def test_mutated_calls_keep_no_engine_out() -> None:
    """Junk on the handshake and, from engines that are none, on the input: one that behaves is
    accepted, and a request runs."""
    statuses = [pack_status("HELLO"), pack_status("READY")]
    async with bound_client() as client:
        accepting = asyncio.ensure_future(client.accept())
        stranger = WireEngine(client.addresses.handshake, 9)
        ready = pack_ready(stranger.info, ParallelSizes())
        inputs = stranger.connect_input(client.addresses.input)
        for status, registration in zip(messages(statuses, 1), messages([ready], 2), strict=True):
            await stranger.handshake.send_multipart(status)
            await inputs.send_multipart(registration)
        await until(lambda: client.num_dropped == 2 * COUNT)
        engine = WireEngine(client.addresses.handshake)
        await engine.register()
        await accepting
        for registration in messages([ready], 3):
            await inputs.send_multipart(registration)
        await until(lambda: client.num_dropped == 3 * COUNT)
        stream = await client.generate(request("healthy", 3))
        await engine.send({"healthy": [7]}, finish=FinishKind.STOP)
        assert (await read(stream)).tokens == [7]
        stranger.close()
        engine.close()
