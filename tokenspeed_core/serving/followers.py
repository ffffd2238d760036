# SPDX-License-Identifier: MIT
"""The other ranks of an engine, as processes that this one starts and outlives."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from tokenspeed_core.config import EngineConfig
from tokenspeed_core.ranks.mesh import RankError
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.serving.follower_order import FollowerOrder

COMMAND = (sys.executable, "-m", "tokenspeed_core.serving.follower_main")
STOP_GRACE_S = 2.0


@contextmanager
def meeting_folder() -> Iterator[Path]:
    """A folder only this user may enter, with a path short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="ts-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@frozen
class Followers:
    """The processes this rank started, by rank."""

    processes: Mapping[int, subprocess.Popen[bytes]]

    def check(self) -> None:
        """RankError names one that ended."""
        for rank, process in self.processes.items():
            if process.poll() is not None:
                raise RankError(
                    f"rank {rank} ended with code {process.returncode} before it met the others; "
                    "its log may say why"
                )


@contextmanager
def followers(
    config: EngineConfig, topology: Topology, *, folder: Path, replica: int = 0
) -> Iterator[Followers]:
    """Run the members of a replica behind its first; they end with the loop, or at the end here."""
    first = replica * topology.replica_size
    started: dict[int, subprocess.Popen[bytes]] = {}
    try:
        for rank in range(first + 1, first + topology.replica_size):
            order = FollowerOrder(config=config.to_toml(), rank=rank, folder=str(folder))
            started[rank] = _start(order)
        yield Followers(started)
    finally:
        _stop([*started.values()])


def _start(order: FollowerOrder) -> subprocess.Popen[bytes]:
    # Ctrl-C in a terminal is for the first rank alone; the others follow it.
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, process_group=0)
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(order.to_line())
        process.stdin.flush()
    return process


def _stop(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Closing the pipe tells a follower that its first rank is gone."""
    for process in started:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
    try:
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_GRACE_S)
    finally:
        # Also where a person does not want to wait.
        for process in started:
            process.kill()
        for process in started:
            process.wait()
