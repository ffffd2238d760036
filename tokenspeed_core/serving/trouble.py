# SPDX-License-Identifier: MIT
"""What ends a deployment by itself: an engine's process that ended, or a client that lost one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tokenspeed_core.client.engine_client import EngineClient
from tokenspeed_core.errors import CompositionError, EngineError
from tokenspeed_core.serving.engine_process import EngineEnd, EngineProcess
from tokenspeed_core.wire.death import announce_death

LOOK_S = 0.5
# A client that lost an engine may know so before the engine's process has ended.
ENDING_S = 2.0


async def first_trouble(
    client: EngineClient, engines: Sequence[EngineProcess]
) -> EngineError | CompositionError:
    """Wait for the first trouble, have every stream end with an error, and say what it was."""
    ended = asyncio.create_task(_first_end(engines))
    try:
        while not ended.done() and not _has_failed(client):
            await asyncio.wait([ended], timeout=LOOK_S)
        await asyncio.wait([ended], timeout=ENDING_S)
        if not ended.done():
            return EngineError(str(client.failure))
        end = ended.result()
        await asyncio.to_thread(announce_death, client.addresses.output, engine_index=end.index)
        return end.error()
    finally:
        ended.cancel()


def _has_failed(client: EngineClient) -> bool:
    """Before the engines have registered a failure only says that they have not."""
    return bool(client.engines) and client.failure is not None


async def _first_end(engines: Sequence[EngineProcess]) -> EngineEnd:
    ends = [asyncio.create_task(engine.ended()) for engine in engines]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    return next(end.result() for end in ends if end.done())
