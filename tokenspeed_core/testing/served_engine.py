# SPDX-License-Identifier: MIT
"""Scripted engines that serve a client over the wire, each on a thread of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from attrs import frozen

from tokenspeed_core.client import EngineClient
from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_core.serving.engine_info import engine_info
from tokenspeed_core.testing.engine import EngineSetup
from tokenspeed_core.testing.invariants import Counters, check_idle, check_round
from tokenspeed_core.testing.scripted_plane import ScriptedDataPlane
from tokenspeed_core.testing.wire_engine import bound_client
from tokenspeed_core.wire.frontend import ZmqFrontend

PATIENCE_S = 60.0
LOOK_S = 0.002


class ServedEngine:
    """A rank that runs rounds on its own thread between `start` and `stop`, each one checked.

    `plane` says what the device saw; `setup.frontend` is not used.
    """

    def __init__(self, setup: EngineSetup, handshake: str, *, index: int = 0) -> None:
        self.index = index
        self.frontend = ZmqFrontend(handshake)
        self.rank = build_rank(
            setup.config(),
            setup.plugins,
            surroundings=Surroundings(
                frontend=self.frontend,
                decode_text=setup.decode_text,
                tokenizer=setup.tokenizer,
                make_data_plane=ScriptedDataPlane,
                make_scheduler=NativeScheduler,
            ),
        )
        assert isinstance(self.rank.data_plane, ScriptedDataPlane)
        self.plane = self.rank.data_plane
        self.loop = self.rank.loop
        self.rank.start()
        self._start_counters = Counters.of(self.loop.scheduler)
        self._is_stopping = False
        self._is_cut_off = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"engine-{index}", daemon=True)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left to do, or nothing will be done any more."""
        if self._is_cut_off:
            return True
        loop = self.loop
        is_busy = len(loop.requests) or loop.in_flight or loop.ledger.num_open
        return not (is_busy or loop.scheduler.has_work or loop.scheduler.storage_pending)

    def start(self) -> None:
        """Connect, and run rounds from now on."""
        self.frontend.start(engine_info(self.rank, index=self.index))
        self._thread.start()

    def wait_until_quiet(self, limit_s: float = PATIENCE_S) -> None:
        """Wait until nothing is left to do; AssertionError past the limit."""
        deadline = time.monotonic() + limit_s
        while not self.is_quiet:
            assert time.monotonic() < deadline, f"engine {self.index} is busy after {limit_s} s"
            time.sleep(LOOK_S)

    def cut_off(self) -> None:
        """Stop in the middle of whatever runs; the state that leaves is not checked."""
        self._is_cut_off = True
        self.stop()

    def stop(self) -> None:
        """End the thread with a notice of death; what a round raised is raised here."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._thread.join()
        self.rank.stop()
        if self._error is not None:
            raise self._error

    def check_idle(self) -> None:
        """Check, once stopped, that everything is back at its start."""
        if not self._is_cut_off:
            check_idle(self.loop, self.plane, start=self._start_counters)

    def _run(self) -> None:
        try:
            while not self.loop.round(self._is_stopping):
                check_round(self.loop, self.plane)
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self.frontend.close()


@frozen
class Served:
    """A client and the engines that it was given."""

    client: EngineClient
    engines: list[ServedEngine]

    @property
    def plane(self) -> ScriptedDataPlane:
        """The device side of the only engine."""
        (engine,) = self.engines
        return engine.plane

    async def quiet(self) -> None:
        """Wait until no engine has anything left to do."""
        for engine in self.engines:
            await asyncio.to_thread(engine.wait_until_quiet)


@asynccontextmanager
async def served_engines(
    setup: EngineSetup | None = None, *, count: int = 1, **config: Any
) -> AsyncIterator[Served]:
    """Start engines that serve a client; at the end everything must be back at its start.

    `config` is the client's. Data-parallel engines made like this do not wait for each other.
    """
    setup = setup or EngineSetup()
    async with bound_client(count, **config) as client:
        address = client.addresses.handshake
        served = Served(client, [ServedEngine(setup, address, index=i) for i in range(count)])
        for engine in served.engines:
            engine.start()
        try:
            await client.accept()
            yield served
            await client.aclose()
            await served.quiet()
        finally:
            await client.aclose()
            for engine in served.engines:
                await asyncio.to_thread(engine.stop)
    for engine in served.engines:
        engine.check_idle()


async def until(condition: Callable[[], object], *, limit_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; AssertionError past the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {limit_s} s"
        await asyncio.sleep(LOOK_S)
