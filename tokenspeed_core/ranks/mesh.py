# SPDX-License-Identifier: MIT
"""What a driver that carries bytes between ranks offers, and the groups made of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import define, frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_core.ranks.device_seat import DeviceSeat
from tokenspeed_core.ranks.membership import Whereabouts
from tokenspeed_core.ranks.single import SingleGroup
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_hookspecs import Group

INT = "q"  # 64 bits, signed


class RankError(EngineError):
    """A rank is gone, does not answer, or sent what it must not."""


class Mesh(Protocol):
    """A FIFO of payloads between each pair of ranks; RankError names a peer that is gone.

    `on_end` is called once a peer is known to be gone, maybe on another thread.
    """

    on_end: Callable[[str], None]

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    def send(self, peer: int, payload: bytes) -> None:
        """Give a peer a payload; never waits for it."""
        ...

    def receive(self, peer: int) -> bytes:
        """The peer's next payload; waits for it, up to the mesh's limit."""
        ...

    def fail(self, reason: str) -> None:
        """Tell every peer why this rank ends, so that they name the cause and not this rank."""
        ...

    def close(self) -> None:
        """Let go of connections and files; calling it again does nothing."""
        ...


@define(eq=False)
class MeshGroup:
    """Some ranks in a fixed order, over a mesh."""

    mesh: Mesh
    members: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.members)

    @property
    def index(self) -> int:
        """This rank's place in it."""
        return self.members.index(self.mesh.rank)

    def gather(self, payload: bytes) -> list[bytes]:
        """Every member's payload, in member order."""
        own = self.mesh.rank
        for member in self.members:
            if member != own:
                self.mesh.send(member, payload)
        return [payload if m == own else self.mesh.receive(m) for m in self.members]

    def broadcast(self, source: int, payload: bytes) -> bytes:
        """The source member's payload, on every member."""
        origin, own = self.members[source], self.mesh.rank
        if own != origin:
            return self.mesh.receive(origin)
        for member in self.members:
            if member != own:
                self.mesh.send(member, payload)
        return payload

    def agree_min(self, values: Sequence[int]) -> list[int]:
        """The element-wise minimum over the members."""
        return [min(column) for column in self._columns(values)]

    def agree_max(self, values: Sequence[int]) -> list[int]:
        """The element-wise maximum over the members."""
        return [max(column) for column in self._columns(values)]

    def total(self, values: Sequence[int]) -> list[int]:
        """The element-wise sum over the members."""
        return [sum(column) for column in self._columns(values)]

    def _columns(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        rows = []
        for member, part in zip(
            self.members, self.gather(array(INT, values).tobytes()), strict=True
        ):
            if len(part) != len(values) * 8:
                raise RankError(
                    f"rank {member} sent {len(part)} bytes to an exchange of {len(values)} "
                    "integers; the ranks are not in step"
                )
            rows.append(array(INT, part).tolist())
        return list(zip(*rows, strict=True))


@define(eq=False)
class CheckedGroup:
    """A group whose every exchange also says where its caller is, and compares.

    A rank that skipped an exchange is then named with both places, where it would have hung or been
    read as something else.
    """

    group: MeshGroup
    where: Callable[[], str]
    name: str

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return self.group.size

    @property
    def index(self) -> int:
        """This rank's place in it."""
        return self.group.index

    def gather(self, payload: bytes) -> list[bytes]:
        """Every member's payload, in member order."""
        parts = self.group.gather(self._marked("gather") + payload)
        return [
            self._checked(m, p, verb="gather") for m, p in zip(self._members, parts, strict=True)
        ]

    def broadcast(self, source: int, payload: bytes) -> bytes:
        """The source member's payload, on every member."""
        part = self.group.broadcast(source, self._marked("broadcast") + payload)
        return self._checked(self._members[source], part, verb="broadcast")

    def agree_min(self, values: Sequence[int]) -> list[int]:
        """The element-wise minimum over the members."""
        return self._with_place(MeshGroup.agree_min, values)

    def agree_max(self, values: Sequence[int]) -> list[int]:
        """The element-wise maximum over the members."""
        return self._with_place(MeshGroup.agree_max, values)

    def total(self, values: Sequence[int]) -> list[int]:
        """The element-wise sum over the members."""
        return self._with_place(MeshGroup.total, values)

    @property
    def _members(self) -> tuple[int, ...]:
        return self.group.members

    def _with_place(
        self, verb: Callable[[MeshGroup, Sequence[int]], list[int]], values: Sequence[int]
    ) -> list[int]:
        """The places first: without them integers of another exchange would be taken for ours."""
        called = f"{verb.__name__} of {len(values)}"
        places = self.group.gather(self._marked(called))
        for member, place in zip(self._members, places, strict=True):
            self._checked(member, place, verb=called)
        return verb(self.group, values)

    def _marked(self, verb: str) -> bytes:
        return f"{self.name} {verb}, {self.where()}\0".encode()

    def _checked(self, member: int, part: bytes, *, verb: str) -> bytes:
        place, _, payload = part.partition(b"\0")
        mine = self._marked(verb)[:-1]
        if place != mine:
            raise RankError(
                f"ranks are not in step: rank {self.group.mesh.rank} is at {mine.decode()!r}, rank "
                f"{member} at {place.decode(errors='replace')!r}"
            )
        return payload


@frozen(eq=False)
class MeshRanks:
    """The groups of one rank."""

    rank: int
    world_size: int
    replica: Group
    pp: Group | None
    dp: Group | None
    ep: Group | None
    mesh: Mesh
    where: Whereabouts
    seat: DeviceSeat | None

    def on_end(self, hear: Callable[[str], None]) -> None:
        """Have somebody hear, maybe on another thread, that another rank is gone."""
        self.mesh.on_end = hear

    def fail(self, reason: str) -> None:
        """Tell the other ranks why this one ends."""
        self.mesh.fail(reason)

    def close(self) -> None:
        """Leave the deployment."""
        self.mesh.close()


def ranks_of(
    topology: Topology,
    mesh: Mesh,
    *,
    device: DeviceSeat | None = None,
    is_checked: bool = False,
) -> MeshRanks:
    """The groups a topology gives a mesh's rank; checked ones compare where every rank is.

    `device` is where the rank's data plane meets the others, if it can.
    """
    where = Whereabouts()

    def group(name: str, members: tuple[int, ...] | None) -> Group | None:
        if members is None:
            return None
        if len(members) == 1:
            return SingleGroup()
        made = MeshGroup(mesh, members)
        return CheckedGroup(made, where, name) if is_checked else made

    replica = group("replica", topology.replica(mesh.rank))
    assert replica is not None, "every rank is in a replica"
    return MeshRanks(
        mesh.rank,
        topology.world_size,
        replica,
        group("pp", topology.stages(mesh.rank)),
        group("dp", topology.world()),
        group("ep", topology.experts(mesh.rank)),
        mesh,
        where,
        device,
    )
