# SPDX-License-Identifier: MIT
"""The death notice, on every way out of an engine's process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenspeed_core.errors import EngineError
from tokenspeed_core.serving.messages import EngineOrder
from tokenspeed_core.testing.engine import EngineSetup
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.wire_peer import WirePeer
from tokenspeed_core.wire.codec import DEATH, EngineDeath
from tokenspeed_core.wire.death import announce_death
from tokenspeed_core.wire.frontend import ZmqFrontend
from tokenspeed_core.wire.handshake import Init
from tokenspeed_hookspecs import EngineInfo


@pytest.fixture
def process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An engine's process that dials the folder's handshake address."""
    config = EngineSetup(plane={"checked_pages": False}).config().to_toml()
    order = EngineOrder(config=config, handshake=f"ipc://{folder}/h")
    command = [sys.executable, "-m", "tokenspeed_core.serving.engine_main"]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with started:
        assert started.stdin is not None
        started.stdin.write(order.to_line())
        started.stdin.flush()
        yield started
        started.kill()


def test_sigterm_is_told(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """An engine that is asked to end says so to a gateway with requests in flight, in one frame."""
    with WirePeer(folder, is_own_client=False) as peer:
        peer.accept()
        peer.send(request("a", 4, budget=4000))
        peer.next_output()
        process.send_signal(signal.SIGTERM)
        while (frames := peer.next_frames()) != [DEATH]:
            assert len(frames) == 1
    assert process.wait(60) == 0


def test_a_supervisor_tells_of_a_killed_engine(
    folder: Path, process: subprocess.Popen[bytes]
) -> None:
    """Who watches the process of a killed engine can tell in its place."""
    with WirePeer(folder) as peer:
        peer.accept()
        peer.next_frames()
        process.kill()
        process.wait()
        assert announce_death(peer.init.output_address, engine_index=0)
        assert peer.next_output() == EngineDeath(0)


def test_nothing_is_left_for_the_next_front_end(folder: Path) -> None:
    """A notice to a front end that is gone does not wait for the one that comes after it."""
    with WirePeer(folder) as peer:
        address = peer.init.output_address
    (folder / "o").touch()
    assert not announce_death(address)
    (folder / "o").unlink()
    with WirePeer(folder) as peer, pytest.raises(TimeoutError):
        peer.next_frames(0.2)


def test_a_failure_of_the_wire_is_told(folder: Path, info: EngineInfo) -> None:
    """When the sockets' thread fails the front end is told, and the loop's next round raises."""

    def fail(init: Init) -> None:
        raise RuntimeError("broken")

    frontend = ZmqFrontend(f"ipc://{folder}/h", on_connected=fail)
    frontend.start(info)
    with WirePeer(folder) as peer:
        peer.accept()
        while peer.next_output() != EngineDeath(0):
            pass
    frontend.close()
    with pytest.raises(EngineError, match=r"the wire to .* failed"):
        frontend.receive(None)
