# SPDX-License-Identifier: MIT
"""What every mesh driver must do, and how a rank learns that another is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import zmq
from attrs import evolve

from tokenspeed_core.errors import ConfigError
from tokenspeed_core.ranks.meeting import local_seat
from tokenspeed_core.ranks.mesh import CheckedGroup, Mesh, MeshGroup, RankError, ranks_of
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.ranks.zmq_mesh import MeshLimits, ZmqMesh
from tokenspeed_core.testing import thread_meshes

T = TypeVar("T")
# A machine may be too busy to let a rank send its heartbeat, or its payload, for a while.
LIMITS = MeshLimits(beat_s=0.5, dead_s=10.0, hung_s=10.0, connect_s=60.0, linger_s=0.2)
HUNG_S = 1.0


def on_all(meshes: Sequence[Mesh], act: Callable[[Mesh], T]) -> list[T]:
    """Run on every rank at once."""
    with ThreadPoolExecutor(len(meshes)) as pool:
        return list(pool.map(act, meshes))


def zmq_meshes(size: int, folder: Path, *, hung_s: float = LIMITS.hung_s) -> list[Mesh]:
    """Ranks that are connected over ipc."""
    limits = evolve(LIMITS, hung_s=hung_s)
    meshes = [ZmqMesh(rank, b"secret", limits) for rank in range(size)]
    bound = {mesh.rank: mesh.bind(f"ipc://{folder}/{mesh.rank}") for mesh in meshes}
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda mesh: mesh.connect(bound), meshes))
    return list(meshes)


@pytest.fixture(params=["threads", "zmq"])
def meshes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Mesh]]:
    """Three ranks of each driver."""
    made = (
        thread_meshes(3, LIMITS.hung_s) if request.param == "threads" else zmq_meshes(3, tmp_path)
    )
    yield made
    for mesh in made:
        mesh.close()


def test_every_verb_gives_every_member_the_same(meshes: list[Mesh]) -> None:
    """Minimum, maximum, sum, gather in member order, and broadcast from each source."""

    def run(mesh: Mesh) -> list[object]:
        group, own = MeshGroup(mesh, (0, 1, 2)), mesh.rank
        return [
            group.agree_min([own, -own]),
            group.agree_max([own, -own]),
            group.total([own, 2**40]),
            group.gather(bytes([own]) * own),
            *[group.broadcast(source, b"%d" % own) for source in range(3)],
        ]

    expected = [[0, -2], [2, 0], [3, 3 * 2**40], [b"", b"\1", b"\2\2"], b"0", b"1", b"2"]
    assert on_all(meshes, run) == [expected] * 3


def test_groups_that_overlap_do_not_mix(meshes: list[Mesh]) -> None:
    """Exchanges of two groups in a row reach the members they are for, in order."""

    def run(mesh: Mesh) -> list[list[int]]:
        found = []
        for turn in range(50):
            if mesh.rank < 2:
                found.append(MeshGroup(mesh, (0, 1)).agree_max([mesh.rank + turn]))
            found.append(MeshGroup(mesh, (2, 1, 0)).agree_min([mesh.rank + turn]))
        return found

    first, second, third = on_all(meshes, run)
    assert first == second
    assert third == [[turn] for turn in range(50)]


def test_a_large_payload_arrives_whole(meshes: list[Mesh]) -> None:
    """Sending never waits for the receiver, so ranks may send to each other at once."""
    payload = bytes(range(256)) * 20_000
    found = on_all(meshes, lambda mesh: MeshGroup(mesh, (0, 1, 2)).gather(payload))
    assert all(part == payload for parts in found for part in parts)


def test_a_rank_that_failed_is_named_with_its_reason(meshes: list[Mesh]) -> None:
    """Whoever waits for it learns why it ended."""
    meshes[2].fail("its device broke")
    with pytest.raises(RankError, match="rank 2 ended: its device broke"):
        meshes[0].receive(2)


def test_what_was_sent_before_the_end_is_read(meshes: list[Mesh]) -> None:
    """An exchange that a rank took part in is complete, even if it ended right after."""
    meshes[1].send(0, b"last")
    meshes[1].fail("done")
    time.sleep(0.1)
    assert meshes[0].receive(1) == b"last"
    with pytest.raises(RankError, match="rank 1 ended: done"):
        meshes[0].receive(1)


def test_a_rank_that_is_gone_is_named(meshes: list[Mesh]) -> None:
    """Without a farewell its closed connection tells."""
    closing = threading.Timer(0.2, meshes[1].close)
    closing.start()
    with pytest.raises(RankError, match="rank 1 ended: it"):
        meshes[0].receive(1)
    closing.join()


@pytest.mark.parametrize("driver", ["threads", "zmq"])
def test_a_rank_that_sends_nothing_is_named(driver: str, tmp_path: Path) -> None:
    """It lives, but left the order of exchanges: the wait has a limit."""
    is_zmq = driver == "zmq"
    meshes = zmq_meshes(2, tmp_path, hung_s=HUNG_S) if is_zmq else thread_meshes(2, HUNG_S)
    with pytest.raises(RankError, match=r"rank 1 .*sent.* nothing .*hangs"):
        meshes[0].receive(1)
    for mesh in meshes:
        mesh.close()


def test_exchanges_of_different_sizes_are_an_error(meshes: list[Mesh]) -> None:
    """Integers of another exchange are not taken for ours."""

    def run(mesh: Mesh) -> str:
        try:
            MeshGroup(mesh, (0, 1, 2)).agree_min([1] * (1 + mesh.rank))
        except RankError as error:
            return str(error)
        return ""

    assert all("not in step" in text for text in on_all(meshes, run))


def test_checked_groups_name_both_places(meshes: list[Mesh]) -> None:
    """A rank at another exchange is an error with the place of each."""

    def run(mesh: Mesh) -> str:
        group = MeshGroup(mesh, (0, 1, 2))
        checked = CheckedGroup(group, lambda: f"round 7, phase p{mesh.rank == 1}", "replica")
        try:
            checked.agree_min([1])
        except RankError as error:
            return str(error)
        return ""

    found = on_all(meshes, run)
    assert "rank 0 is at 'replica agree_min of 1, round 7, phase pFalse'" in found[0]
    assert "rank 1 at 'replica agree_min of 1, round 7, phase pTrue'" in found[0]


def test_checked_groups_agree_like_others(meshes: list[Mesh]) -> None:
    """The place travels beside the values and leaves them as they are."""

    def run(mesh: Mesh) -> list[object]:
        group = CheckedGroup(MeshGroup(mesh, (0, 1, 2)), lambda: "here", "replica")
        own = mesh.rank
        return [
            group.agree_min([own]),
            group.agree_max([own]),
            group.total([own]),
            group.gather(b"\0" * own),
            group.broadcast(2, b"x\0y" if own == 2 else b""),
        ]

    assert on_all(meshes, run) == [[[0], [2], [3], [b"", b"\0", b"\0\0"], b"x\0y"]] * 3


def test_a_connection_without_the_secret_is_not_heard(tmp_path: Path) -> None:
    """Nobody can pass for a rank without the deployment's secret."""
    here, stranger = ZmqMesh(0, b"secret", LIMITS), ZmqMesh(1, b"guess", LIMITS)
    bound = {0: here.bind(f"ipc://{tmp_path}/0"), 1: stranger.bind(f"ipc://{tmp_path}/1")}
    limits = MeshLimits(connect_s=0.5)
    here.limits = stranger.limits = limits
    errors = []
    for mesh in (stranger, here):
        with pytest.raises(RankError) as raised:
            mesh.connect(bound)
        errors.append(str(raised.value))
    assert all("nothing for 0.5 s" in error for error in errors)
    here.close()
    stranger.close()


def test_a_rank_that_waits_to_meet_can_be_told_to_stop(tmp_path: Path) -> None:
    """What is called while it waits ends the wait, also before any other rank was there."""

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        local_seat(1, Topology(tp=2), folder=tmp_path).meet(stop)


@pytest.mark.parametrize("count", [1, 3])
def test_junk_from_a_stranger_ends_nobody(count: int, tmp_path: Path) -> None:
    """A message of another number of frames is dropped, whoever sent it."""
    first, second = zmq_meshes(2, tmp_path)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(f"ipc://{tmp_path}/0")
        stranger.send_multipart([b"junk"] * count)
        time.sleep(0.1)
        second.send(0, b"sense")
        assert first.receive(1) == b"sense"
    first.close()
    second.close()


def test_a_tcp_address_gets_a_port_and_a_key() -> None:
    """Ranks on other hosts connect to the port that was free, and exchange what ranks do."""
    meshes = [ZmqMesh(rank, b"secret", LIMITS) for rank in range(2)]
    bound = {mesh.rank: mesh.bind("tcp://127.0.0.1") for mesh in meshes}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda mesh: mesh.connect(bound), meshes))
    found = on_all(meshes, lambda mesh: MeshGroup(mesh, (0, 1)).gather(b"%d" % mesh.rank))
    assert found == [[b"0", b"1"]] * 2
    place, _, key = bound[0].partition("#")
    assert int(place.rpartition(":")[2]) > 0
    assert len(key) == 40
    for mesh in meshes:
        mesh.close()


def test_who_lacks_the_key_of_a_tcp_address_cannot_connect() -> None:
    """The deployment's secret alone does not do: nothing of a stranger's is read."""
    limits = MeshLimits(connect_s=0.5)
    here, stranger = (ZmqMesh(rank, b"secret", limits) for rank in range(2))
    bound = {mesh.rank: mesh.bind("tcp://127.0.0.1").partition("#")[0] for mesh in (here, stranger)}
    try:
        for mesh in (stranger, here):
            with pytest.raises(RankError, match=r"nothing for|connection broke"):
                mesh.connect(bound)
    finally:
        here.close()
        stranger.close()


def test_groups_follow_the_topology() -> None:
    """Positions first, then stages, then replicas; a group that does not apply is absent."""
    topology = Topology(tp=2, pp=2, dp=2)
    world = thread_meshes(8)
    ranks = ranks_of(topology, world[6])
    assert isinstance(ranks.replica, MeshGroup)
    assert (ranks.replica.members, ranks.replica.index) == ((4, 5, 6, 7), 2)
    assert isinstance(ranks.pp, MeshGroup)
    assert (ranks.pp.members, ranks.pp.index) == ((4, 6), 1)
    assert topology.positions(6) == (6, 7)
    alone = ranks_of(Topology(), thread_meshes(1)[0])
    assert (alone.replica.size, alone.pp, alone.dp) == (1, None, None)


@pytest.mark.parametrize(
    ("topology", "groups"),
    [
        (Topology(tp=2, ep=2), {(0, 1)}),
        (Topology(dp=2, ep=2), {(0, 1)}),
        (Topology(tp=2, dp=2, ep=2), {(0, 1), (2, 3)}),
        (Topology(tp=2, dp=2, ep=4), {(0, 1, 2, 3)}),
        (Topology(tp=2, pp=2, dp=2, ep=4), {(0, 1, 4, 5), (2, 3, 6, 7)}),
        (Topology(tp=2, pp=2, ep=2), {(0, 1), (2, 3)}),
    ],
    ids=str,
)
def test_experts_are_spread_within_a_stage(
    topology: Topology, groups: set[tuple[int, ...]]
) -> None:
    """Groups are neighbours among a stage's ranks, over replicas too, and every rank is in one."""
    of_rank = [topology.experts(rank) for rank in range(topology.world_size)]
    assert {members for members in of_rank if members is not None} == groups
    assert all(rank in (members or ()) for rank, members in enumerate(of_rank))


def test_a_group_of_experts_agrees_within_itself(meshes: list[Mesh]) -> None:
    """Its members sum over themselves, in both drivers; a rank alone with its experts has none."""
    topology = Topology(dp=3, ep=3)

    def run(mesh: Mesh) -> tuple[int, list[int]]:
        group = ranks_of(topology, mesh, is_checked=True).ep
        assert group is not None
        return group.index, group.total([mesh.rank, 1])

    assert on_all(meshes, run) == [(0, [3, 3]), (1, [3, 3]), (2, [3, 3])]
    assert ranks_of(Topology(dp=3), meshes[0]).ep is None


def test_a_number_of_ranks_for_experts_must_divide_a_stage() -> None:
    """The error names the option and what it has to divide."""
    with pytest.raises(
        ConfigError, match=r"engine\.ep: 3 does not divide the 4 ranks .*tp 2 x dp 2"
    ):
        Topology(tp=2, pp=3, dp=2, ep=3)


def test_a_size_below_one_is_refused() -> None:
    """The error names the option and the value."""
    with pytest.raises(ConfigError, match=r"engine\.pp: expected at least 1, got 0"):
        Topology(pp=0)
