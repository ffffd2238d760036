# SPDX-License-Identifier: MIT
"""A rank that is stopped, not killed: its sockets are open, and it reads nothing more."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenspeed_core.ranks.mesh import RankError
from tokenspeed_core.ranks.zmq_mesh import MeshLimits, ZmqMesh

LIMITS = MeshLimits(beat_s=0.5, dead_s=1.0, connect_s=60.0, linger_s=0.1)
FOLLOWER = """
import sys
from tokenspeed_core.ranks.zmq_mesh import MeshLimits, ZmqMesh
mesh = ZmqMesh(1, b"secret", MeshLimits(connect_s=60.0))
mesh.bind(f"ipc://{sys.argv[1]}/1")
mesh.connect({rank: f"ipc://{sys.argv[1]}/{rank}" for rank in range(2)})
mesh.send(0, b"here")
while True:
    mesh.receive(0)
"""


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The second rank, as a process that reads whatever it is sent."""
    process = subprocess.Popen([sys.executable, "-c", FOLLOWER, str(tmp_path)])
    yield process
    process.kill()
    process.wait()


def _send_for_a_minute(mesh: ZmqMesh) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        mesh.send(1, bytes(3000))
        time.sleep(0.002)


def test_a_stopped_rank_that_is_sent_much_is_noticed(
    tmp_path: Path, follower: subprocess.Popen[bytes]
) -> None:
    """What waits to be written to it does not keep its missing heartbeat from being noticed."""
    mesh = ZmqMesh(0, b"secret", LIMITS)
    mesh.bind(f"ipc://{tmp_path}/0")
    try:
        mesh.connect({rank: f"ipc://{tmp_path}/{rank}" for rank in range(2)})
        assert mesh.receive(1) == b"here"
        follower.send_signal(signal.SIGSTOP)
        with pytest.raises(RankError, match="rank 1 ended: its connection broke"):
            _send_for_a_minute(mesh)
    finally:
        mesh.close()
