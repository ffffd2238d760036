# SPDX-License-Identifier: MIT
"""The requests in flight: which engine each is on, and where its chunks go.

Chunks of a request that was left may still be on their way, and would be taken for those of a new
request of the same id. So the ids that were left last stay taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from attrs import define, field

from tokenspeed_core.client.streams import Mailbox
from tokenspeed_hookspecs import Chunk, EngineUnavailableError, RequestInUseError

REMEMBERED = 4096


@define(eq=False)
class Flight:
    """One request; `position` is its engine's place among the engines, None until it is routed."""

    mailbox: Mailbox
    position: int | None = None


@define(eq=False)
class InFlight:
    """Every request between its registration and its end, by id."""

    _counts: list[int]  # by engine
    _flights: dict[str, Flight] = field(factory=dict, init=False)
    _left: dict[str, None] = field(factory=dict, init=False)

    @classmethod
    def on(cls, num_engines: int) -> InFlight:
        """An empty table for so many engines."""
        return cls([0] * num_engines)

    @property
    def counts(self) -> list[int]:
        """How many requests each engine has."""
        return self._counts

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._flights

    def register(self, request_id: str) -> Flight:
        """Take an id; RequestInUseError if it is taken."""
        if request_id in self._flights:
            raise RequestInUseError(
                f"request id {request_id!r} is in flight; give each request an id of its own"
            )
        if request_id in self._left:
            raise RequestInUseError(
                f"request id {request_id!r} was aborted just now and its last chunks may still "
                "come; give each request an id of its own"
            )
        flight = Flight(Mailbox(asyncio.get_running_loop()))
        self._flights[request_id] = flight
        return flight

    def route(self, flight: Flight, position: int) -> None:
        """Note the engine of a registered request."""
        flight.position = position
        self._counts[position] += 1

    def undo(self, request_id: str) -> None:
        """Forget a request that no engine was told of."""
        self._remove(request_id)

    def leave(self, request_id: str) -> Flight | None:
        """Forget a request that its engine still works on; None if it is not in flight."""
        flight = self._remove(request_id)
        if flight is not None:
            self._left[request_id] = None
            if len(self._left) > REMEMBERED:
                del self._left[next(iter(self._left))]
        return flight

    def deliver(self, chunks: Iterable[tuple[str, Chunk]]) -> list[str]:
        """Hand chunks to their readers; returns the ids of streams that miss tokens.

        A batch that could not be read leaves holes, which the totals show.
        """
        torn = []
        flight_of = self._flights.get
        for request_id, chunk in chunks:
            flight = flight_of(request_id)
            if flight is None:
                continue
            if not flight.mailbox.follows(chunk):
                torn.append(request_id)
                continue
            if chunk.details is not None and chunk.details.finish is not None:
                self._remove(request_id)
            flight.mailbox.put(chunk)
        return torn

    def fail(self, failure: EngineUnavailableError) -> None:
        """End every stream with an error."""
        flights, self._flights = self._flights, {}
        self._counts[:] = [0] * len(self._counts)
        for flight in flights.values():
            flight.mailbox.fail(failure)

    def _remove(self, request_id: str) -> Flight | None:
        flight = self._flights.pop(request_id, None)
        if flight is not None and flight.position is not None:
            self._counts[flight.position] -= 1
        return flight
