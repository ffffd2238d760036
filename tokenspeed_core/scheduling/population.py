# SPDX-License-Identifier: MIT
"""The requests a driver knows, and how many are in each stage.

The wheel changes a request's stage only inside a plan, or when an end is applied, so stages kept
here from plans and answers equal the wheel's own counts without asking it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import define, field

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Stage(IntEnum):
    """Where a request stands; an ENDED one may still have rows to answer."""

    BACKLOG = 0
    WAITING = 1
    PREFILLING = 2
    DECODING = 3
    RETRACTED = 4
    ENDED = 5


class Price(NamedTuple):
    """What a request takes to begin: tokens to compute and pages nobody holds yet."""

    tokens: int
    pages: int


NOTHING = Price(0, 0)


@define(eq=False)
class Tracked:
    """One request from its submission until the wheel has forgotten it.

    `pages` is what its admission may claim; `unbegun` what was counted against the next ones when
    it was handed over. `native_spec` waits for the handover. `result` and `reserve` are the
    request's own event objects, refilled for each answer: adding an event copies it, and writing
    an attribute costs less than a new object.
    """

    request_id: str
    incarnation: int
    prompt_ids: Sequence[int]
    pages: int
    native_spec: Any = None
    max_shared: int = 1 << 31
    stage: Stage = Stage.BACKLOG
    unbegun: Price = NOTHING
    is_abort_held: bool = False
    is_suspect: bool = False
    prompt: npt.NDArray[np.int32] | None = None
    result: Any = None
    reserve: Any = None

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_ids)


@define(eq=False)
class Population:
    """Every known request by id, counted by stage."""

    _by_id: dict[str, Tracked] = field(factory=dict)
    _counts: list[int] = field(factory=lambda: [0] * len(Stage))

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
