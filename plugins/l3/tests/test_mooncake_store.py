# SPDX-License-Identifier: MIT
"""The Mooncake store, with a master of its own, where no other machine can reach it.

Mooncake listens on every interface, so the test begins itself anew in a network namespace.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from attrs import define, field

from tokenspeed_l3.store_contract import StoreContract

if TYPE_CHECKING:
    from tokenspeed_l3.stores.mooncake import MooncakeStore

WAIT_S = 60.0
INSIDE = "L3_MOONCAKE_INSIDE"
HOST, MASTER, METADATA = "10.78.0.1", 50051, 8080
# Besides the loopback it wants an interface with an address.
NETWORK = (
    "ip link set lo up && ip link add d0 type veth peer name d1 && ip addr add 10.78.0.1/24 dev d0"
    " && ip link set d0 up && ip link set d1 up"
)


@define
class MooncakeBench:
    """A master that several stores join."""

    ports: list[int] = field(factory=lambda: [17700])

    def open(self, *, lends: str = "0") -> MooncakeStore:
        """A store that joins it, and lends so much memory."""
        from tokenspeed_l3.stores.mooncake import MooncakeStore

        self.ports[0] += 1
        options = {
            "location": f"//127.0.0.1:{MASTER}",
            "metadata": f"http://127.0.0.1:{METADATA}/metadata",
            "hostname": f"{HOST}:{self.ports[0]}",
            "segment_size": lends,
            "buffer_size": "16MiB",
        }
        return MooncakeStore(options, buffers=())

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        raise NotImplementedError

    def swap(self, first: str, second: str) -> None:
        raise NotImplementedError


@pytest.fixture(scope="module")
def bench() -> Iterator[MooncakeBench]:
    """A master, and one member that stays, so that objects do not leave with the others."""
    import mooncake  # type: ignore[import-not-found,unused-ignore]  # where it loads

    program = str(Path(mooncake.__path__[0]) / "mooncake_master")
    flags = [f"--port={MASTER}", "--enable_http_metadata_server=true"]
    flags.append(f"--http_metadata_server_port={METADATA}")
    log = subprocess.DEVNULL
    with subprocess.Popen([program, *flags], stdout=log, stderr=log) as process:
        for port in (MASTER, METADATA):
            _wait_for(port)
        bench = MooncakeBench()
        try:
            member = bench.open(lends="64MiB")
            yield bench
            member.close()
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < end, f"nobody listens at {port}"
            time.sleep(0.05)
        else:
            return


if INSIDE in os.environ:

    class TestContract(StoreContract):
        """What every store must do; Mooncake's memory is out of reach for damage."""

        finds_damage = False


@pytest.mark.slow
@pytest.mark.skipif(INSIDE in os.environ, reason="this is the namespace")
def test_in_a_namespace() -> None:
    """The contract holds where Mooncake loads."""
    probe = [sys.executable, "-c", "import mooncake.store"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Mooncake does not load here: {done.stderr.strip().splitlines()[-1]}")
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("no unshare and ip here to keep Mooncake from the network")
    probe = ["unshare", "-n", "sh", "-c", NETWORK]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no network namespace can be made here: {done.stderr.strip()}")
    command = f"{NETWORK} && exec {sys.executable} -m pytest -q --import-mode=importlib {__file__}"
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", command],
        env={**os.environ, INSIDE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
