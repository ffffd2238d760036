# SPDX-License-Identifier: MIT
"""Binding, shaking hands, and what may go wrong meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from attrs import evolve

from tokenspeed_core.client import Addresses, ClientConfig, EngineClient, private_addresses
from tokenspeed_core.keyed_address import ListenKey
from tokenspeed_core.testing import request
from tokenspeed_core.testing.served_engine import until
from tokenspeed_core.testing.wire_engine import WireEngine, bound_client, wire_engines
from tokenspeed_core.wire.frontend import ZmqFrontend
from tokenspeed_core.wire.handshake import ParallelSizes, pack_ready, pack_status
from tokenspeed_hookspecs import EngineInfo, EngineUnavailableError, FinishKind

INFO = EngineInfo(
    index=0,
    model="scripted",
    max_model_len=64,
    vocab_size=100,
    page_size=16,
    num_pages=9,
    dtype="float32",
    version="test",
)
pytestmark = pytest.mark.anyio


async def test_accept_returns_when_every_engine_has_registered() -> None:
    """Engines that come in any order are listed by index, from the first index on."""
    async with bound_client(3, first_engine=4) as client:
        engines = [WireEngine(client.addresses.handshake, index) for index in (6, 4, 5)]
        accepting = asyncio.ensure_future(client.accept())
        for engine in engines:
            assert not accepting.done()
            await engine.register()
        infos = await accepting
        for engine in engines:
            engine.close()
    assert [info.index for info in infos] == [4, 5, 6]
    assert [info.vocab_size for info in infos] == [100_000] * 3


async def test_an_engine_may_call_before_the_client_listens() -> None:
    """HELLO waits in the engine's socket until there is somebody to answer it."""
    with private_addresses() as addresses:
        engine = WireEngine(addresses.handshake)
        registering = asyncio.ensure_future(engine.register())
        await asyncio.sleep(0.05)
        async with EngineClient(ClientConfig(addresses=addresses)) as client:
            client.bind()
            assert len(await client.accept()) == 1
            await registering
        engine.close()


async def test_accept_names_the_engines_that_did_not_come() -> None:
    """Past the limit the error says of each missing engine how far it came."""
    async with bound_client(3, handshake_timeout_s=1.5) as client:
        there, half = (WireEngine(client.addresses.handshake, index) for index in (0, 1))
        await half.handshake.send(pack_status("HELLO"))
        _, error = await asyncio.gather(there.register(), client.accept(), return_exceptions=True)
        there.close()
        half.close()
    assert isinstance(error, EngineUnavailableError)
    assert "within 1.5 s: engine 1 called and was told the addresses" in str(error)
    assert "engine 2 has not called" in str(error)


async def test_nothing_runs_before_the_engines_are_there() -> None:
    """A request without engines is refused at once, and says what is missing."""
    async with bound_client() as client:
        assert client.engines == ()
        assert "not registered yet" in str(client.failure)
        with pytest.raises(EngineUnavailableError, match="not registered yet"):
            await client.generate(request("r1", 3))


async def test_an_engine_may_start_over_within_the_handshake() -> None:
    """One that calls again, as after a restart while the others load, is greeted anew."""
    async with bound_client() as client:
        accepting = asyncio.ensure_future(client.accept())
        first = WireEngine(client.addresses.handshake)
        await first.handshake.send(pack_status("HELLO"))
        await first.handshake.recv()
        first.close()
        second = WireEngine(client.addresses.handshake)
        await second.register()
        assert len(await accepting) == 1
        second.close()


STRANGE = {
    "junk": [b"\xc1\xff"],
    "an empty frame": [b""],
    "two frames": [pack_status("HELLO"), b""],
    "READY first": [pack_status("READY")],
    "another status": [b"\x81\xa6status\xa3BYE"],
}


@pytest.mark.parametrize("frames", STRANGE.values(), ids=STRANGE)
async def test_what_is_no_handshake_is_dropped(frames: list[bytes]) -> None:
    """A message that makes no sense, of an expected engine or of a stranger, is counted, and the
    engine that behaves is accepted."""
    async with bound_client() as client:
        accepting = asyncio.ensure_future(client.accept())
        engine, stranger = (WireEngine(client.addresses.handshake, index) for index in (0, 7))
        await engine.handshake.send_multipart(frames)
        await stranger.handshake.send_multipart(frames)
        await stranger.handshake.send(pack_status("HELLO"))
        await until(lambda: client.num_dropped == 3)
        await engine.register()
        assert len(await accepting) == 1
        engine.close()
        stranger.close()


async def test_an_engine_of_an_unknown_dtype_is_not_served_with() -> None:
    """A ready response whose dtype is none we know ends the accept with its name."""
    async with bound_client() as client:
        engine = WireEngine(client.addresses.handshake)
        ready = pack_ready(engine.info, ParallelSizes()).replace(b"\xa8bfloat16", b"\xa8float8xy")
        _, error = await asyncio.gather(
            engine.register(ready), client.accept(), return_exceptions=True
        )
        engine.close()
    assert isinstance(error, EngineUnavailableError)
    assert "engine 0" in str(error)
    assert "float8xy" in str(error)


async def test_a_cancelled_accept_leaves_the_addresses_free() -> None:
    """A supervisor that gives up waiting can bind again."""
    async with bound_client() as client:
        accepting = asyncio.ensure_future(client.accept())
        await asyncio.sleep(0)
        accepting.cancel()
        await asyncio.wait([accepting])
        client.bind()


async def test_accept_is_called_once_after_each_bind() -> None:
    """A second accept has nobody to wait for; it says so."""
    async with wire_engines() as (client, _):
        with pytest.raises(RuntimeError, match="once after each bind"):
            await client.accept()
        assert client.failure is None


async def test_tcp_on_loopback_works_as_well() -> None:
    """Ports that were left open are known once the client is bound, and stay when bound again."""
    anywhere = "tcp://127.0.0.1:*"
    async with EngineClient(ClientConfig(addresses=Addresses(*[anywhere] * 3))) as client:
        addresses = client.bind()
        engine = WireEngine(addresses.handshake)
        await asyncio.gather(client.accept(), engine.register())
        stream = await client.generate(request("r1", 3))
        await engine.send({"r1": [1]}, finish=FinishKind.STOP)
        assert [chunk.token_ids async for chunk in stream] == [[1]]
        await client.aclose()
        assert client.bind() == addresses
        engine.close()


async def test_a_bound_client_is_not_bound_again() -> None:
    """Binding while engines are connected would lose their streams."""
    async with wire_engines() as (client, _):
        with pytest.raises(RuntimeError, match="bound already"):
            client.bind()


async def test_an_address_that_is_taken_is_named() -> None:
    """A tcp port of somebody else is an OSError with the address."""
    async with bound_client() as _:
        anywhere = "tcp://127.0.0.1:*"
        taken = EngineClient(ClientConfig(addresses=Addresses(*[anywhere] * 3))).bind()
        other = EngineClient(ClientConfig(addresses=taken))
        with pytest.raises(OSError, match=f"cannot listen at {taken.handshake}"):
            other.bind()


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:5000", "tcp://example.org:1", "tcp://*:1", "ipc://", "inproc://x"]
)
def test_addresses_others_could_reach_are_refused(address: str) -> None:
    """The sockets have no authentication, so they are on this host only."""
    with pytest.raises(ValueError, match="loopback"):
        Addresses(address, "ipc://a", "ipc://b")


def test_private_addresses_are_private_and_short() -> None:
    """The folder is for its owner only, its paths fit a socket, and it goes away."""
    with private_addresses() as addresses:
        folder = Path(addresses.input.removeprefix("ipc://")).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(str(folder)) < 60
    assert not folder.exists()


def test_private_addresses_are_short_where_the_temporary_folder_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary folder with a long path is passed over."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with private_addresses() as addresses:
        assert len(addresses.handshake) < 100


async def test_who_does_not_know_the_key_is_not_heard() -> None:
    """Sockets on the network take engines that were told the whole address, and nobody else."""
    client = EngineClient(ClientConfig(addresses=Addresses.at("127.0.0.1"), handshake_timeout_s=10))
    async with client:
        handshake = client.bind().handshake
        place, _, key = handshake.partition("#")
        strangers = [
            ZmqFrontend(address)
            for address in (place, f"{place}#{ListenKey.new().public.decode()}")
        ]
        engine = ZmqFrontend(handshake)
        try:
            for each in strangers:
                each.start(evolve(INFO, model="stranger"))
            await asyncio.sleep(0.3)
            engine.start(INFO)
            (info,) = await client.accept()
        finally:
            for each in (*strangers, engine):
                each.close()
    assert (info.model, len(key)) == ("scripted", 40)
    assert client.num_dropped == 0
