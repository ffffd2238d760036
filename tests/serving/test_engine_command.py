# SPDX-License-Identifier: MIT
"""`tokenspeed engine` for somebody else's front end: here, a client in the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tokenspeed_core.client.addresses import private_addresses
from tokenspeed_core.client.config import ClientConfig
from tokenspeed_core.client.engine_client import EngineClient
from tokenspeed_core.serving.gateway import handshake_address
from tokenspeed_hookspecs import AddRequest, EngineUnavailableError, SamplingParams

Start = Callable[..., Any]
ENDLESS = SamplingParams(max_new_tokens=4000, ignore_eos=True)
DEATH_S = 20.0  # silence would take minutes


@pytest.fixture
def config() -> Iterator[ClientConfig]:
    """Addresses of a deployment of one engine."""
    with private_addresses() as addresses:
        yield ClientConfig(addresses=addresses)


def engine(command: Start, client: EngineClient) -> Any:
    """Start the command for this client, which is bound."""
    address = client.addresses.handshake
    flags = ["--config", "engine.toml", "--data-plane", "scripted"]
    return command("engine", "--connect", address, *flags)


def test_a_gateways_handshake_port_follows_from_its_path() -> None:
    """The port of the worker's URL is the one that gateways compute."""
    assert handshake_address("ipc:///run/engine/a") == "tcp://127.0.0.1:24602"


async def _kill_during_a_request(command: Start, config: ClientConfig) -> tuple[Any, float]:
    async with EngineClient(config) as client:
        client.bind()
        started = engine(command, client)
        await client.accept()
        (child,) = started.family = psutil.Process(started.process.pid).children(recursive=True)
        stream = await client.generate(AddRequest("a", [1], ENDLESS))
        await anext(stream)
        child.kill()
        began = asyncio.get_running_loop().time()
        with pytest.raises(EngineUnavailableError):
            async for _ in stream:
                pass
        return started, asyncio.get_running_loop().time() - began


def test_a_killed_engine_is_told_by_its_parent(command: Start, config: ClientConfig) -> None:
    """Streams end with an error long before silence would tell, and the command with code 1."""
    started, seconds = asyncio.run(_kill_during_a_request(command, config))
    code, said = started.end()
    assert seconds < DEATH_S
    assert code == 1
    assert "engine 0 was killed by SIGKILL" in said


async def _stop(command: Start, config: ClientConfig) -> tuple[int, str]:
    async with EngineClient(config) as client:
        client.bind()
        started = engine(command, client)
        await client.accept()
        started.family = psutil.Process(started.process.pid).children(recursive=True)
        stopped: tuple[int, str] = await asyncio.to_thread(started.stop)
        return stopped


def test_a_signal_ends_it_cleanly(command: Start, config: ClientConfig) -> None:
    """SIGTERM to the command ends the engine's process as well, with code 0."""
    assert asyncio.run(_stop(command, config)) == (0, "")


def test_what_cannot_be_composed_is_code_2(command: Start) -> None:
    """The engine's process finds a problem, and the command tells it as its own."""
    flags = ["--data-plane", "scripted", "--scheduler", "nope"]
    code, said = command("engine", "--connect", "ipc://nowhere", *flags).end()
    assert code == 2
    assert said.startswith("tokenspeed: engine.scheduler: unknown driver 'nope'")
