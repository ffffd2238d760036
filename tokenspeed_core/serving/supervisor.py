# SPDX-License-Identifier: MIT
"""One engine behind a front end or gateway of someone else's, and a parent that outlives it.

An engine that is killed cannot say so, and whoever reads its outputs would wait for minutes. So the
parent says it, to the address the engine had connected to. Nothing is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tokenspeed_core.serving.engine_process import EngineProcess
from tokenspeed_core.serving.messages import EngineOrder
from tokenspeed_core.serving.racing import first_done, running
from tokenspeed_core.serving.stop_signals import StopSignals
from tokenspeed_core.wire.death import announce_death


async def supervise(order: EngineOrder, *, hear: Callable[[str], None]) -> None:
    """Run one engine until SIGINT or SIGTERM; EngineError or CompositionError if it ends before."""
    with StopSignals().installed() as signals:
        engine = await EngineProcess.start(order, hear=hear)
        async with running(engine.ended()) as ended, running(signals.asked.wait()) as asked:
            first = await first_done(ended, asked)
        end = await engine.stop()
        if first is ended:
            if engine.output is not None:
                await asyncio.to_thread(announce_death, engine.output)
            raise end.error()
