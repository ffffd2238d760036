# SPDX-License-Identifier: MIT
"""`tokenspeed serve` as a process, with a scripted engine and the kit's small front end."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from attrs import define, field

LIMIT_S = 30.0
ENTRY_POINTS = """[tokenspeed.frontends]
lines = tokenspeed_core.testing.line_server:LineServer
"""
# A forward takes long enough for a request to be caught in the act.
CONFIG = """[data_plane]
forward_ms = 5.0
"""


@define
class Command:
    """A running `tokenspeed` command that prints one JSON object a line."""

    process: subprocess.Popen[str]
    events: queue.Queue[dict[str, Any] | None]
    log: Path
    family: list[psutil.Process] = field(factory=list)

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next event of this name; what comes before it is passed over."""
        while (found := self.events.get(timeout=LIMIT_S)) is not None:
            if found["event"] == event:
                self.family = psutil.Process(self.process.pid).children(recursive=True)
                return found
        raise AssertionError(f"ended before {event!r}: {self.log.read_text()}")

    def connect(self) -> Connection:
        """A connection to its front end, once it is ready."""
        host, _, port = self.wait_for("ready")["url"].removeprefix("tcp://").partition(":")
        return Connection(socket.create_connection((host, int(port)), timeout=LIMIT_S))

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        return self.family[0]

    def folders(self) -> set[Path]:
        """Where its sockets are."""
        sockets = psutil.Process(self.process.pid).net_connections("unix")
        return {Path(each.laddr).parent for each in sockets if "tokenspeed-" in each.laddr}

    def stop(self, signum: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, wait for the end; its code and what it wrote to standard error."""
        self.process.send_signal(signum)
        return self.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end, and for that of every process it had."""
        code = self.process.wait(LIMIT_S)
        _, alive = psutil.wait_procs(self.family, timeout=LIMIT_S)
        assert alive == []
        return code, self.log.read_text()


class Connection:
    """A line each way."""

    def __init__(self, connected: socket.socket) -> None:
        self._file = connected.makefile("rwb")

    def ask(self, **asked: Any) -> None:
        """Send a request."""
        self._file.write(json.dumps(asked).encode() + b"\n")
        self._file.flush()

    def hear(self) -> dict[str, Any]:
        """The next line that comes back; empty at the end of the connection."""
        line = self._file.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found

    def tokens(self) -> list[int]:
        """What one request answers, to its end."""
        found: list[int] = []
        while True:
            chunk = self.hear()
            found += chunk["token_ids"]
            if chunk["finish"] is not None:
                return found


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment where the kit's front end is installed, and sockets go to `sockets`."""
    info = tmp_path / "site" / "lines-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lines\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "engine.toml").write_text(CONFIG)
    path = os.pathsep.join(filter(None, [str(info.parent), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def command(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start `tokenspeed` with these arguments; whatever is left of it is ended afterwards."""
    started: list[Command] = []

    def start(*arguments: str, launcher: Sequence[str] = ()) -> Command:
        log = tmp_path / f"{len(started)}.log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, *launcher, "-m", "tokenspeed_core", *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
                cwd=tmp_path,
            )
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=_read, args=(process.stdout, events), daemon=True).start()
        started.append(Command(process, events, log))
        return started[-1]

    yield start
    for each in started:
        for process in (each.process, *each.family):
            _kill(process)


@pytest.fixture
def serve(command: Callable[..., Command]) -> Callable[..., Command]:
    """Start `tokenspeed serve` with a scripted engine and these flags besides."""
    usual = ["--config", "engine.toml", "--data-plane", "scripted", "--frontend", "lines", "--json"]
    return lambda *flags, **how: command("serve", *usual, *flags, **how)


def _read(lines: IO[str], events: queue.Queue[dict[str, Any] | None]) -> None:
    for line in lines:
        events.put(json.loads(line))
    events.put(None)


def _kill(process: subprocess.Popen[str] | psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()
