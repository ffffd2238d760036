# SPDX-License-Identifier: MIT
"""The way of a request out of the wheel.

A finished request stays known until its last row is answered and the next plan was made. An abort
waits for the forwards in flight: the wheel frees an aborted request's pages at once and may give
them to another row while the device still writes them.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field

from tokenspeed_core.scheduling.entrance import Entrance
from tokenspeed_core.scheduling.flight import Flight, Forward
from tokenspeed_core.scheduling.native_events import NativeEvents
from tokenspeed_core.scheduling.population import Population, Stage, Tracked


@define(eq=False, kw_only=True)
class Endings:
    """Requests that ended and are still known, and how many of them wait for their abort."""

    population: Population
    flight: Flight
    entrance: Entrance
    events: NativeEvents
    num_held: int = 0
    num_suspect: int = 0  # requests that run on and publish what nobody may use
    has_suspects: bool = False  # pages of one, or of an aborted request, were published
    leaving: list[Tracked] = field(factory=list)

    @property
    def are_suspects_over(self) -> bool:
        """Whether there are suspect pages, and no more of them can come."""
        return self.has_suspects and not self.num_held and not self.num_suspect

    def suspect(self, request: Tracked) -> None:
        """Take all that a request publishes, until it ends, for bad."""
        if not request.is_suspect:
            request.is_suspect = self.has_suspects = True
            self.num_suspect += 1

    def end(self, request: Tracked) -> None:
        """Take a request for ended: its rows in flight must come back without a token."""
        self.num_suspect -= request.is_suspect
        request.is_suspect = False
        self.entrance.leave(request, Stage.ENDED)
        self.leaving.append(request)
        self.flight.mark_late(request.request_id)

    def end_held(self, request: Tracked) -> None:
        """The same, with an abort that is owed once no forward in flight names the request."""
        self.end(request)
        self.num_held += 1
        request.is_abort_held = True
        # A chunk's answer, or the plan that named it again, published what it had written so far.
        self.has_suspects = True

    def release_aborts(self, forward: Forward) -> dict[int, list[Any]]:
        """The aborts that follow the rows of a forward just taken out of flight, by row."""
        released: dict[int, list[Any]] = {}
        for row, request in enumerate(forward.rows.requests):
            if not request.is_abort_held:
                continue
            released[row] = []
            if not self.flight.names(request.request_id):
                self.num_held -= 1
                request.is_abort_held = False
                released[row] = [self.events.abort(request.request_id)]
        return released

    def num_answering(self) -> int:
        """How many ended requests have rows in flight."""
        return sum(self.flight.names(request.request_id) for request in self.leaving)

    def forget_answered(self) -> None:
        """The plan just made let go of the ended requests whose rows were all answered."""
        leaving, self.leaving = self.leaving, []
        for request in leaving:
            if self.flight.names(request.request_id):
                self.leaving.append(request)
            else:
                self.population.forget(request)
