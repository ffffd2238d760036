# SPDX-License-Identifier: MIT
"""A deployment's life: bind, start the engines, accept them, serve, let go of clients, stop.

Whatever ends it, the order is the same: the front end closes its ports, the engines' processes end,
the client closes its sockets, and their folder is removed.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from tokenspeed_core.client.addresses import Addresses
from tokenspeed_core.client.config import ClientConfig
from tokenspeed_core.client.engine_client import EngineClient
from tokenspeed_core.errors import EngineError
from tokenspeed_core.models.resolve import ModelFolder
from tokenspeed_core.serving.engine_process import EngineProcess
from tokenspeed_core.serving.followers import meeting_folder
from tokenspeed_core.serving.frontend_place import frontend_addresses, started_here
from tokenspeed_core.serving.heap import settle_heap
from tokenspeed_core.serving.messages import EngineOrder
from tokenspeed_core.serving.plan import ServePlan
from tokenspeed_core.serving.racing import first_done, running
from tokenspeed_core.serving.status import ServeStatus
from tokenspeed_core.serving.stop_signals import StopSignals
from tokenspeed_core.serving.trouble import ENDING_S, first_trouble
from tokenspeed_hookspecs import EngineUnavailableError, ServingContext, Tokenizer

# A model may load for long; an engine that dies meanwhile is noticed by its process.
LOADING_LIMIT_S = 3600.0
# What a front end may take to close beyond the time that requests have.
CLOSING_S = 5.0


@frozen(kw_only=True)
class Server:
    """A deployment that runs until it is stopped or fails."""

    plan: ServePlan
    status: ServeStatus
    model: ModelFolder | None = None
    composition: Mapping[str, Any] = field(factory=dict)
    log: logging.Logger = field(factory=lambda: logging.getLogger("tokenspeed"))

    async def run(self) -> None:
        """Serve until SIGINT or SIGTERM; EngineError or CompositionError if it cannot go on."""
        with (
            StopSignals().installed() as signals,
            frontend_addresses(self.plan.config.engine.dp) as addresses,
            meeting_folder() as folder,
        ):
            config = ClientConfig(
                addresses=addresses,
                num_engines=self.plan.config.engine.dp,
                handshake_timeout_s=LOADING_LIMIT_S,
            )
            client = EngineClient(config, log=self.log)
            client.bind()
            engines: list[EngineProcess] = []
            try:
                for index in started_here(config.engine_indices):
                    order = self._order(index, client.addresses, meeting=folder)
                    engines.append(await EngineProcess.start(order, hear=self.status.log_line))
                self.status.loading(self.plan.model, engine_pids=[each.pid for each in engines])
                await self._serve(client, engines, signals=signals)
            finally:
                # While the engines still have a client, they have nothing to complain of.
                await asyncio.gather(*(_stop(engine, signals) for engine in engines))
                await client.aclose()

    def _order(self, index: int, addresses: Addresses, *, meeting: Path) -> EngineOrder:
        scheme, _, place = addresses.handshake.partition("://")
        sockets = (str(Path(place).parent),) if scheme == "ipc" else ()
        return EngineOrder(
            config=self.plan.config.to_toml(),
            handshake=addresses.handshake,
            index=index,
            meeting=str(meeting),
            leftovers=(*sockets, str(meeting)),
            log_level=self.plan.log_level,
        )

    async def _serve(
        self, client: EngineClient, engines: Sequence[EngineProcess], *, signals: StopSignals
    ) -> None:
        async with (
            running(first_trouble(client, engines)) as trouble,
            running(signals.asked.wait()) as asked,
        ):
            async with running(self._accepted(client)) as accepted:
                first = await first_done(trouble, asked, accepted)
            if first is accepted:
                async with running(self.plan.server.serve(accepted.result())) as serving:
                    first = await first_done(trouble, asked, serving)
                    await self._leave(serving, signals)
                if first is serving:
                    raise EngineError("the front end ended, though nobody stopped it")
            if first is trouble:
                raise trouble.result()

    async def _accepted(self, client: EngineClient) -> ServingContext:
        """Wait for the engines, and load the tokenizer meanwhile."""
        try:
            tokenizer, _ = await asyncio.gather(asyncio.to_thread(self._tokenizer), client.accept())
        except EngineUnavailableError as error:
            # The end of the engine's process tells more, and is about to be seen.
            await asyncio.sleep(ENDING_S)
            raise EngineError(str(error)) from error
        return ServingContext(
            client=client,
            tokenizer=tokenizer,
            model=self.plan.model,
            log=self.log,
            ready=self._ready,
            composition=self.composition,
            drain_timeout_s=self.plan.options.drain_timeout,
        )

    def _ready(self, url: str) -> None:
        settle_heap()
        self.status.ready(url)

    def _tokenizer(self) -> Tokenizer | None:
        return None if self.model is None else self.model.load_tokenizer()

    async def _leave(self, serving: Task[None], signals: StopSignals) -> None:
        """Have the front end close; what runs may end by itself, unless a person insists."""
        seconds = self.plan.options.drain_timeout
        self.status.stopping(seconds)
        serving.cancel()
        async with running(signals.insisted.wait()) as insisted:
            await asyncio.wait(
                (serving, insisted),
                timeout=seconds + CLOSING_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        if serving.done() and not serving.cancelled() and (error := serving.exception()):
            text = f"the front end failed: {type(error).__name__}: {error}"
            raise EngineError(text) from error


async def _stop(engine: EngineProcess, signals: StopSignals) -> None:
    """End an engine's process; at once if a person insists."""
    async with running(engine.stop()) as stopped, running(signals.insisted.wait()) as insisted:
        if await first_done(stopped, insisted) is insisted:
            engine.kill()
        await engine.ended()
