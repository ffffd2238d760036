# SPDX-License-Identifier: MIT
"""Which ranks form which group.

Ranks count through tensor-parallel positions first, then pipeline stages, then data-parallel
replicas: rank = (replica * stages + stage) * positions + position. A replica's first rank is
position 0 of its first stage; it owns the frontend.

A layer's experts are spread over ranks of one stage, which may be of several replicas: those of a
stage, counted in rank order, form groups of `ep` neighbours.
"""

from __future__ import annotations

from attrs import field, frozen

from tokenspeed_core.config import EngineSection
from tokenspeed_core.errors import ConfigError


def _at_least_one(_: object, attribute: object, value: int) -> None:
    if value < 1:
        name = getattr(attribute, "name", "a size")
        raise ConfigError([f"engine.{name}: expected at least 1, got {value}"])


@frozen
class Place:
    """Where a rank stands: its replica, its pipeline stage, its tensor-parallel position."""

    replica: int
    stage: int
    position: int


@frozen
class Topology:
    """The sizes of a deployment: tensor, pipeline, data and expert parallel."""

    tp: int = field(default=1, validator=_at_least_one)
    pp: int = field(default=1, validator=_at_least_one)
    dp: int = field(default=1, validator=_at_least_one)
    ep: int = field(default=1, validator=_at_least_one)

    def __attrs_post_init__(self) -> None:
        if self.tp * self.dp % self.ep:
            raise ConfigError(
                [
                    f"engine.ep: {self.ep} does not divide the {self.tp * self.dp} ranks that hold "
                    f"a stage's layers (tp {self.tp} x dp {self.dp})"
                ]
            )

    @classmethod
    def of(cls, section: EngineSection) -> Topology:
        """The topology a configuration asks for."""
        return cls(section.tp, section.pp, section.dp, section.ep)

    @property
    def replica_size(self) -> int:
        """Ranks that mirror one scheduler."""
        return self.tp * self.pp

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.replica_size * self.dp

    def place(self, rank: int) -> Place:
        """Where a rank stands."""
        replica, inside = divmod(rank, self.replica_size)
        stage, position = divmod(inside, self.tp)
        return Place(replica, stage, position)

    def is_first(self, rank: int) -> bool:
        """Whether a rank is the first of its replica."""
        return rank % self.replica_size == 0

    def replica(self, rank: int) -> tuple[int, ...]:
        """The members of a rank's replica."""
        first = self.place(rank).replica * self.replica_size
        return tuple(range(first, first + self.replica_size))

    def stages(self, rank: int) -> tuple[int, ...] | None:
        """The ranks of one position, a stage each in stage order; None with one stage."""
        if self.pp == 1:
            return None
        place = self.place(rank)
        first = place.replica * self.replica_size + place.position
        return tuple(first + stage * self.tp for stage in range(self.pp))

    def positions(self, rank: int) -> tuple[int, ...]:
        """The ranks that share a stage's tensors."""
        place = self.place(rank)
        first = place.replica * self.replica_size + place.stage * self.tp
        return tuple(range(first, first + self.tp))

    def world(self) -> tuple[int, ...] | None:
        """Every rank, whose forwards run in step; None without data parallelism."""
        return tuple(range(self.world_size)) if self.dp > 1 else None

    def experts(self, rank: int) -> tuple[int, ...] | None:
        """The ranks over which a rank's experts are spread, in that order; None if it has all."""
        if self.ep == 1:
            return None
        place = self.place(rank)
        index = place.replica * self.tp + place.position
        first = index - index % self.ep
        return tuple(self._of_stage(place.stage, each) for each in range(first, first + self.ep))

    def _of_stage(self, stage: int, index: int) -> int:
        replica, position = divmod(index, self.tp)
        return (replica * self.pp + stage) * self.tp + position
