# SPDX-License-Identifier: MIT
"""The requests a driver knows, and how many are in each stage.

The wheel changes a request's stage only inside a plan, or when an end is applied, so stages kept
here from plans and answers equal the wheel's own counts without asking it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from attrs import define, field


class Stage(Enum):
    """Where a request stands; an ENDED one may still have rows to answer."""

    BACKLOG = "backlog"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    RETRACTED = "retracted"
    ENDED = "ended"


@define(eq=False)
class Tracked:
    """One request from its submission until the wheel has forgotten it.

    `pages` is what its admission may claim. `native_spec` waits for the handover. `result` and
    `reserve` are the request's own event objects, refilled for each answer: `add_event` copies,
    and two attribute writes cost less than two objects.
    """

    request_id: str
    incarnation: int
    num_prompt: int
    pages: int
    native_spec: Any
    stage: Stage = Stage.BACKLOG
    is_abort_held: bool = False
    result: Any = None
    reserve: Any = None


@define(eq=False)
class Population:
    """Every known request by id, counted by stage."""

    _by_id: dict[str, Tracked] = field(factory=dict)
    _counts: dict[Stage, int] = field(factory=lambda: dict.fromkeys(Stage, 0))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __getitem__(self, request_id: str) -> Tracked:
        return self._by_id[request_id]

    def get(self, request_id: str) -> Tracked | None:
        """The request of that id, if it is known."""
        return self._by_id.get(request_id)

    def add(self, request: Tracked) -> None:
        """Take in a new request; its id must be unknown."""
        assert request.request_id not in self._by_id
        self._by_id[request.request_id] = request
        self._counts[request.stage] += 1

    def move(self, request: Tracked, stage: Stage) -> None:
        """Change a request's stage."""
        self._counts[request.stage] -= 1
        self._counts[stage] += 1
        request.stage = stage

    def forget(self, request: Tracked) -> None:
        """Drop a request; its id may be used again."""
        del self._by_id[request.request_id]
        self._counts[request.stage] -= 1

    def count(self, stage: Stage) -> int:
        """How many requests are in that stage."""
        return self._counts[stage]

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._by_id.values())
