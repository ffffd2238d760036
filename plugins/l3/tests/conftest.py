# SPDX-License-Identifier: MIT
"""Ranks whose plugins share scripted stores, over both mesh drivers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field

from tokenspeed_core.ranks.mesh import Mesh
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.ranks.zmq_mesh import ZmqMesh
from tokenspeed_core.testing import (
    EngineFixture,
    EngineSetup,
    Stream,
    Tiers,
    WorldFixture,
    request,
    thread_meshes,
)
from tokenspeed_hookspecs import ControlReply, ControlRequest
from tokenspeed_l3.plugin import L3
from tokenspeed_l3.store import Store
from tokenspeed_l3.stores.resp import Connection, ReplyError, Server
from tokenspeed_l3.testing import ScriptedStore

LIMIT_S, START_S = 20.0, 60.0
# The limits of the acceptance scenarios: small, and nothing ends by time.
LIMITS: Mapping[str, Any] = {
    "store": "memory:of-a-test",
    "max_operations": 8,
    "max_keys_per_operation": 8,
    "max_host_pages": 64,
    "metadata_entries": 64,
    "min_prefetch_tokens": 1,
    "max_prefetch_tokens": 1024,
    "wait_timeout_s": 1000.0,
    "ready_timeout_s": 1000.0,
    "pressure_operations": 64,
    "pressure_bytes": 2**40,
    "pressure_age_s": 1000.0,
    "query_workers": 1,
    "read_workers": 1,
    "write_workers": 1,
    "failure_threshold": 1,
    "recovery_interval_s": 30.0,
}


def l3_with(stores: Sequence[Store]) -> type[L3]:
    """The plugin with a store a rank."""

    class L3WithStores(L3):
        def open_store(self, buffers: Sequence[memoryview]) -> Store:
            return stores[self.engine.ranks.rank % len(stores)]

    return L3WithStores


@define(eq=False)
class Deployment:
    """Ranks, and the store that each of them has."""

    world: WorldFixture
    stores: Sequence[ScriptedStore]

    @property
    def engine(self) -> EngineFixture:
        """The rank with the first replica's frontend."""
        return self.world.engine()

    def plugin(self, rank: int = 0) -> L3:
        """A rank's plugin."""
        (found,) = (each for each in self.world.engines[rank].rank.plugins if each.name == "l3")
        assert isinstance(found.instance, L3)
        return found.instance

    def ask(
        self, name: str, prompt: int | Sequence[int], *, replica: int = 0, **more: Any
    ) -> Stream:
        """Run a request to its end; its stream."""
        self.world.put(request(name, prompt, **more), replica=replica)
        received = self.world.engine(replica).received
        self.until(lambda: received[name].finish)
        return received[name]

    def cached(self, name: str, *, replica: int = 0) -> int:
        """How many prompt tokens of a request were cached."""
        return self.world.engine(replica).received[name].chunks[-1].cached_tokens

    def until(self, condition: Callable[[], object]) -> None:
        """Run rounds until a condition holds, leaving the stores' threads some time."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            self.world.round()
            self.engine.rest()
            assert time.monotonic() < end, [
                each.scheduler.storage_counts for each in self.world.engines
            ]

    def settle(self) -> None:
        """Run until nothing is left: requests, cache work, storage."""
        quiet = 0
        while quiet < 4:
            self.until(lambda: all(each.is_quiet for each in self.world.engines))
            self.world.round()
            quiet = quiet + 1 if all(each.is_quiet for each in self.world.engines) else 0

    def operate(self, name: str, **arguments: object) -> ControlReply:
        """Ask for a control operation on every replica, and wait for the first one's reply."""
        before = len(self.engine.received.replies)
        self.world.put(ControlRequest(name, arguments))
        self.until(lambda: len(self.engine.received.replies) > before)
        return self.engine.received.replies[-1]

    @property
    def held(self) -> list[int]:
        """Host pages that each rank's scheduler holds for storage."""
        return [each.scheduler.storage_counts["held_blocks"] for each in self.world.engines]


Deploy = Callable[..., Deployment]


@define
class Deployments:
    """Makes deployments, and closes them."""

    mesh: Callable[[int], list[Mesh]]
    made: list[Deployment] = field(factory=list)

    def __call__(
        self,
        stores: Sequence[ScriptedStore] | ScriptedStore,
        topology: Topology | None = None,
        *,
        setup: EngineSetup | None = None,
        world: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Deployment:
        """Ranks with these stores; options are the plugin's, and `world` goes to the fixture."""
        topology = topology or Topology()
        stores = [stores] if isinstance(stores, ScriptedStore) else stores
        setup = setup or EngineSetup(depth=1, tiers=Tiers.HOST)
        tables = {**setup.tables, "l3": {**LIMITS, **options}}
        setup = evolve(setup, plugins=(*setup.plugins, l3_with(stores)), tables=tables)
        meshes = self.mesh(topology.world_size)
        ranks = WorldFixture(topology, setup, meshes=meshes, **(world or {}))
        self.made.append(Deployment(ranks, stores))
        return self.made[-1]

    def close(self) -> None:
        """Open every gate and stop every rank."""
        for each in self.made:
            for store in each.stores:
                store.open()
            each.world.close()


@define
class RedisProcess:
    """A server of its own."""

    folder: Path
    process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    @property
    def path(self) -> str:
        return str(self.folder / "s")

    def start(self) -> None:
        """Run it and wait until it answers."""
        command = ["redis-server", "--unixsocket", self.path, "--port", "0", "--save", ""]
        command += ["--dir", str(self.folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _until_no_error(self._ask)

    def send(self, what: int) -> None:
        """Send it a signal; a dead one is waited for."""
        assert self.process is not None
        self.process.send_signal(what)
        if what == signal.SIGKILL:
            self.process.wait()

    def _ask(self) -> None:
        connection = Connection(Server(path=self.path))
        connection.open()
        connection.ask([b"PING"])
        connection.close()


def _until_no_error(call: Callable[[], object]) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + START_S
    while True:
        try:
            call()
        except (OSError, ReplyError):
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.02)
        else:
            return


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    """A server that a test may do anything with."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server here")
    found = RedisProcess(tmp_path)
    found.start()
    yield found
    found.send(signal.SIGKILL)


@pytest.fixture
def in_s3(tmp_path: Path) -> Iterator[str]:
    """The address of a bucket of its own, in a server of its own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("rclone", path=path)
    if program is None or not importlib.util.find_spec("obstore"):
        pytest.skip("no rclone or no obstore here; the extra `test` brings both")
    (tmp_path / "bucket").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program, "serve", "s3", "--auth-key", "who,secret", f"--addr={place}"]
    with subprocess.Popen([*command, str(tmp_path)], stderr=subprocess.DEVNULL) as process:
        host, _, port = place.partition(":")
        _until_no_error(lambda: socket.create_connection((host, int(port))).close())
        keys = "access_key_id=who&secret_access_key=secret"
        yield f"s3://bucket/kv?endpoint=http://{place}&region=us-east-1&{keys}"
        process.kill()


def zmq_meshes(size: int, folder: Path) -> list[Mesh]:
    """So many ranks, connected over ipc."""
    folder.mkdir(exist_ok=True)
    meshes = [ZmqMesh(rank) for rank in range(size)]
    bound = {mesh.rank: mesh.bind(f"ipc://{folder}/{mesh.rank}") for mesh in meshes}
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(lambda mesh: mesh.connect(bound), meshes))
    return list(meshes)


@pytest.fixture
def deploy() -> Iterator[Deploy]:
    """Makes deployments whose ranks are threads."""
    made = Deployments(thread_meshes)
    yield made
    made.close()


@pytest.fixture(params=["threads", "zmq"])
def deploy_over(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deploy]:
    """Makes deployments over each mesh driver."""

    def over_zmq(size: int) -> list[Mesh]:
        return zmq_meshes(size, tmp_path / str(len(made.made)))

    made = Deployments(over_zmq if request.param == "zmq" else thread_meshes)
    yield made
    made.close()
