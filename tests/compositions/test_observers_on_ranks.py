# SPDX-License-Identifier: MIT
"""The plugins `metrics` and `kv_events` on two replicas of two ranks, each of them a process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import define

from tokenspeed_core.composition.discovery import installed

zmq = pytest.importorskip("zmq")
msgspec = pytest.importorskip("msgspec")
missing = {"metrics", "kv_events"} - set(installed().plugins)
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing), reason=f"not installed: {sorted(missing)}"),
]

LIMIT_S = 90.0
PAGE, LENGTH = 16, 80
HEADERS = {"content-type": "application/json"}


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s"
        time.sleep(0.05)


def two_free_ports() -> int:
    """The first of two neighbouring ports that nobody listens on."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port: int = server.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            return port


@define
class Served:
    """A running server, and where its engines publish."""

    model: str
    url: str
    events_port: int
    metrics_port: int

    def ask(self, prompt: list[int]) -> None:
        """Send a prompt, and wait for its answer."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 3}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), HEADERS
        )
        urllib.request.urlopen(request, timeout=LIMIT_S).close()

    def series(self, name: str) -> dict[str, float]:
        """The samples of one name, by engine."""
        return by_engine(f"{self.url}/metrics", name)

    def own_series(self, name: str, rank: int) -> dict[str, float]:
        """The same, as a replica tells it at its own port."""
        return by_engine(f"http://127.0.0.1:{self.metrics_port + rank}/metrics", name)

    def reader(self, rank: int) -> Any:
        """A socket that reads the events of one replica, from the first on."""
        sub = zmq.Context.instance().socket(zmq.SUB)
        sub.subscribe(b"")
        sub.connect(f"tcp://127.0.0.1:{self.events_port + rank}")
        return sub


def by_engine(url: str, name: str) -> dict[str, float]:
    """The samples of one name on a page, by engine."""
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith(f"tokenspeed:{name}{{")]
    engines = [line.partition('engine="')[2].partition('"')[0] for line in found]
    values = [float(line.rpartition(" ")[2]) for line in found]
    return dict(zip(engines, values, strict=True))


@pytest.fixture
def served() -> Iterator[Served]:
    """Two replicas of two scripted ranks behind one front end."""
    port, metrics_port = two_free_ports(), two_free_ports()
    flags = ["--data-plane", "scripted", "--tp", "2", "--dp", "2", "--page-size", str(PAGE)]
    flags += ["--plugins", "metrics,kv_events", "--port", "0", "--json"]
    flags += ["--kv-events-endpoint", f"tcp://127.0.0.1:{port}"]
    flags += ["--metrics-port", str(metrics_port)]
    command = [sys.executable, "-m", "tokenspeed_core", "serve", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = (json.loads(line) for line in process.stdout)
    ready = next(event for event in told if event["event"] == "ready")
    with urllib.request.urlopen(f"{ready['url']}/v1/models", timeout=LIMIT_S) as answer:
        (model,) = json.load(answer)["data"]
    yield Served(model["id"], ready["url"], port, metrics_port)
    process.terminate()
    assert process.wait(LIMIT_S) == 0


def test_each_replica_tells_of_itself_once(served: Served) -> None:
    """Counters have one sample a replica, whatever ranks it has, and add up to what was asked; a
    replica's blocks come at its own port, under its own number."""
    readers = [served.reader(rank) for rank in (0, 1)]
    num_asked = 0

    def ask(length: int) -> None:
        nonlocal num_asked
        num_asked += 1
        served.ask([num_asked] * length)

    def both_are_heard() -> bool:
        ask(LENGTH)
        return all(reader.poll(100) for reader in readers)

    wait_for(both_are_heard)
    for _ in range(8):
        ask(LENGTH)
    wait_for(lambda: sum(served.series("num_requests_total").values()) == num_asked)
    found = served.series("prompt_tokens_total")
    assert set(found) == {"0", "1"}
    assert sum(found.values()) == num_asked * LENGTH
    own = [served.own_series("prompt_tokens_total", rank) for rank in (0, 1)]
    assert own == [{"0": found["0"]}, {"1": found["1"]}]
    stored = [blocks(reader, rank) for rank, reader in enumerate(readers)]
    assert min(stored) > 0
    # What came before a reader was heard is not there.
    assert 8 * (LENGTH // PAGE) <= sum(stored) <= num_asked * (LENGTH // PAGE)


def blocks(reader: Any, rank: int) -> int:
    """How many blocks a replica told of until now; each batch has its number."""
    count = 0
    while reader.poll(1000):
        _, events, replica = msgspec.msgpack.decode(reader.recv_multipart()[2])
        assert replica == rank
        count += sum(event[0] == "BlockStored" for event in events)
    reader.close(0)
    return count
