# SPDX-License-Identifier: MIT
"""The client of a deployment's engines, for asyncio.

    client = EngineClient(ClientConfig(addresses=addresses, num_engines=2))
    client.bind()                       # fixes the addresses
    ...                                 # start the engines with client.addresses.handshake
    await client.accept()               # returns when all have registered
    async with await client.generate(request) as stream:
        async for chunk in stream: ...

When an engine has died, `failure` says why, and every stream has ended with it. Whoever restarts
the engines calls `bind`, starts them and calls `accept`, as at the start: the addresses stay, and
the same client goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tokenspeed_core.client.addresses import Addresses
from tokenspeed_core.client.config import ClientConfig
from tokenspeed_core.client.link import Link
from tokenspeed_core.client.routing import router_of
from tokenspeed_core.client.sockets import open_sockets
from tokenspeed_core.client.streams import ClientStream
from tokenspeed_hookspecs import (
    AddRequest,
    ControlReply,
    ControlRequest,
    EngineInfo,
    EngineUnavailableError,
    Load,
)

NOT_BOUND = "the client is not bound; call bind(), start the engines, then await accept()"


class EngineClient:
    """The contract's EngineClient over the wire; used from one event loop."""

    def __init__(self, config: ClientConfig, *, log: logging.Logger | None = None) -> None:
        self._config = config
        self._log = log or logging.getLogger("tokenspeed.client")
        self._addresses = config.addresses
        self._router = router_of(config.routing)
        self._link: Link | None = None
        self._num_dropped = 0

    # --- its life --------------------------------------------------------------------------------

    @property
    def addresses(self) -> Addresses:
        """Where the client listens; ports that were left open are known once it is bound."""
        return self._addresses

    def bind(self) -> Addresses:
        """Listen, at first or again after a failure; OSError if an address is taken.

        RuntimeError while the engines are connected: their streams would be lost.
        """
        if self._link is not None and not self._link.has_ended:
            raise RuntimeError("the client is bound already; close it, or wait for its failure")
        sockets = open_sockets(self._addresses, send_queue=self._config.send_queue)
        self._addresses = sockets.addresses
        self._keep_count()
        self._link = Link(self._config, sockets, router=self._router, log=self._log)
        return self._addresses

    async def accept(self) -> Sequence[EngineInfo]:
        """Wait until every engine has registered.

        EngineUnavailableError if one does not in time. After that, as after a cancellation, the
        client must be bound again: accepting twice is a RuntimeError.
        """
        return await self._need_link().accept()

    async def aclose(self) -> None:
        """Close the sockets; streams that still run end with an EngineUnavailableError."""
        if self._link is not None:
            self._link.end("the client was closed")

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # --- what it knows ---------------------------------------------------------------------------

    @property
    def engines(self) -> Sequence[EngineInfo]:
        """The engines in index order; empty before they registered."""
        return () if self._link is None else self._link.engines

    @property
    def loads(self) -> Sequence[Load | None]:
        """Each engine's last reported load; None before its first."""
        unknown: list[Load | None] = [None] * self._config.num_engines
        return tuple(unknown if self._link is None else self._link.loads)

    @property
    def failure(self) -> EngineUnavailableError | None:
        """Why no request can run now, or None while the engines live."""
        return EngineUnavailableError(NOT_BOUND) if self._link is None else self._link.failure

    @property
    def num_dropped(self) -> int:
        """Messages that came in and could not be read."""
        return self._num_dropped + (0 if self._link is None else self._link.dropped.count)

    # --- requests --------------------------------------------------------------------------------

    async def generate(self, request: AddRequest, *, rank: int | None = None) -> ClientStream:
        """Send a request to one engine, to the data-parallel `rank` if given.

        RequestInUseError: the id is in flight, or was aborted just now. ValueError: unknown rank,
        or a value the wire has no place for. EngineUnavailableError: see `failure`.
        """
        return await self._need_link().generate(request, rank)

    async def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with finish kind abort. False: it is not in flight."""
        return self._need_link().abort(request_id)

    async def control(
        self, request: ControlRequest, *, timeout_s: float | None = None
    ) -> Sequence[ControlReply]:
        """Send a control request to every engine; one reply each, in engine order.

        A second request of a name waits for the replies to the first. TimeoutError after
        `timeout_s`, waiting included.
        """
        return await self._need_link().control(request, timeout_s)

    def _need_link(self) -> Link:
        if self._link is None:
            raise EngineUnavailableError(NOT_BOUND)
        return self._link

    def _keep_count(self) -> None:
        if self._link is not None:
            self._num_dropped += self._link.dropped.count
