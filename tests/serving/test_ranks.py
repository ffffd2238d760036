# SPDX-License-Identifier: MIT
"""Ranks as processes: they serve together, and end together however one of them ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attrs import frozen

from tokenspeed_core.client.addresses import private_addresses
from tokenspeed_core.client.config import ClientConfig
from tokenspeed_core.client.engine_client import EngineClient
from tokenspeed_core.config import from_tables
from tokenspeed_core.serving.engine_process import EngineProcess
from tokenspeed_core.serving.followers import meeting_folder
from tokenspeed_core.serving.messages import EngineOrder
from tokenspeed_core.testing import request, telling_tokens
from tokenspeed_hookspecs import EngineUnavailableError

FOLLOWER = "tokenspeed_core.serving.follower_main"
ALONE = """
import sys
from tokenspeed_core.assembly import compose
with compose("m", data_plane="scripted", tp=2):
    print("up", flush=True)
    sys.stdin.read()
"""


@frozen
class Deployment:
    """A client, and the processes of the first ranks."""

    client: EngineClient
    engines: list[EngineProcess]
    lines: list[str]

    async def tokens(self, name: str, budget: int, *, rank: int | None = None) -> list[int]:
        """What a request is given."""
        prompt = request(name, 20, budget=budget)
        stream = await self.client.generate(prompt, rank=rank)
        return [token async for chunk in stream for token in chunk.token_ids]

    def followers(self) -> list[int]:
        """The process ids of the other ranks."""
        return [pid for each in self.engines for pid in children(each.pid)]


def children(parent: int) -> list[int]:
    """The followers a process started."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in listed if FOLLOWER in Path(f"/proc/{pid}/cmdline").read_text()]


@asynccontextmanager
async def deployed(**options: object) -> AsyncIterator[Deployment]:
    """Engines on the scripted plane, accepted by a client."""
    engine = {"data_plane": "scripted", "check_ranks": True, **options}
    config = from_tables({"engine": engine, "data_plane": {"forward_ms": 20.0}})
    lines: list[str] = []
    with private_addresses() as addresses, meeting_folder() as folder:
        chosen = ClientConfig(
            addresses=addresses, num_engines=config.engine.dp, handshake_timeout_s=100
        )
        client = EngineClient(chosen)
        client.bind()
        orders = [
            EngineOrder(
                config=config.to_toml(),
                handshake=client.addresses.handshake,
                index=index,
                meeting=str(folder),
            )
            for index in chosen.engine_indices
        ]
        engines = [await EngineProcess.start(order, hear=lines.append) for order in orders]
        try:
            await client.accept()
            yield Deployment(client, engines, lines)
        finally:
            await asyncio.gather(*(engine.stop() for engine in engines))
            await client.aclose()


@pytest.mark.parametrize(
    ("options", "num_followers"), [({"tp": 2}, 1), ({"dp": 2}, 0), ({"pp": 2, "depth": 2}, 1)]
)
def test_ranks_serve_together(options: dict[str, object], num_followers: int) -> None:
    """Requests run on whichever engine they go to, and a stop leaves no process."""

    async def run() -> list[int]:
        async with deployed(**options) as deployment:
            found = [await deployment.tokens(f"r{number}", 5) for number in range(4)]
            pids = deployment.followers()
        if "pp" not in options:  # the scripted plane's first stage samples there
            assert found == [telling_tokens(5)] * 4
        return pids

    pids = asyncio.run(run())
    assert len(pids) == num_followers
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_rank_that_dies_before_it_met_the_others_ends_them() -> None:
    """The first rank names it, and does not wait for it until its limit."""

    async def run() -> tuple[float, str]:
        config = from_tables({"engine": {"data_plane": "scripted", "tp": 2}})
        order = EngineOrder(config=config.to_toml(), handshake="ipc://nowhere")
        engine = await EngineProcess.start(order, hear=lambda line: None)
        while not (started := children(engine.pid)):
            await asyncio.sleep(0.01)
        begin = time.monotonic()
        os.kill(started[0], signal.SIGKILL)
        try:
            end = await asyncio.wait_for(engine.ended(), 30)
        finally:
            await engine.stop()
        return time.monotonic() - begin, "" if end.report is None else " ".join(end.report.problems)

    seconds, problems = asyncio.run(run())
    assert seconds < 20
    assert "rank 1 ended with code -9 before it met the others" in problems


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone_ends_all_within_seconds(ending: signal.Signals) -> None:
    """Killed or stopped, it is named; every stream ends with an error, and no process is left."""

    async def run() -> tuple[float, int, str, list[int]]:
        async with deployed(tp=2) as deployment:
            # Eighty seconds of tokens.
            stream = await deployment.client.generate(request("r", 20, budget=4000))
            await anext(stream)
            (follower,) = deployment.followers()
            begin = time.monotonic()
            os.kill(follower, ending)
            with pytest.raises(EngineUnavailableError):
                async for _ in stream:
                    pass
            seconds = time.monotonic() - begin
            end = await deployment.engines[0].ended()
            problems = "" if end.report is None else " ".join(end.report.problems)
        return seconds, end.code, problems, [follower]

    seconds, code, problems, pids = asyncio.run(run())
    assert seconds < 30  # a few where the machine is not busy
    assert code == 1
    assert "rank 1 ended: its connection broke" in problems
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_first_rank_that_is_killed_leaves_no_folder(tmp_path: Path) -> None:
    """Its followers end and remove where they met, since it cannot."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", ALONE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        (follower,) = children(process.pid)
        assert len(list(tmp_path.iterdir())) == 1
        process.kill()
    until = time.monotonic() + 30
    while Path(f"/proc/{follower}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{follower}").exists()
    assert list(tmp_path.iterdir()) == []
