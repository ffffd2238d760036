# SPDX-License-Identifier: MIT
"""The client for scripts, in front of a scripted engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tokenspeed_core.client import (
    Addresses,
    BlockingEngineClient,
    ClientConfig,
    private_addresses,
)
from tokenspeed_core.testing import EngineSetup, request, telling_tokens
from tokenspeed_core.testing.served_engine import ServedEngine
from tokenspeed_hookspecs import (
    ControlRequest,
    EngineUnavailableError,
    FinishKind,
    RequestInUseError,
)

SETUP = EngineSetup(plane={"forward_ms": 1.0})


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    """Where client and engine meet."""
    with private_addresses() as found:
        yield found


@pytest.fixture
def engine(addresses: Addresses) -> ServedEngine:
    """An engine that is not started yet."""
    return ServedEngine(SETUP, addresses.handshake)


@pytest.fixture
def client(addresses: Addresses, engine: ServedEngine) -> Iterator[BlockingEngineClient]:
    """A client that the engine serves; both are closed at the end."""
    with BlockingEngineClient(ClientConfig(addresses=addresses)) as client:
        client.bind()
        engine.start()
        client.accept()
        yield client
    engine.wait_until_quiet()
    engine.stop()
    engine.check_idle()


def test_it_has_the_same_verbs(client: BlockingEngineClient) -> None:
    """A loop over a stream gets its tokens; a control request its reply; an unknown id is told."""
    with client.generate(request("r1", 5, budget=3)) as stream:
        tokens = [token for chunk in stream for token in chunk.token_ids]
    assert tokens == telling_tokens(3)
    (reply,) = client.control(ControlRequest("is_paused"), timeout_s=10)
    assert reply.values == {"is_paused": False}
    assert not client.abort("r1")
    assert [info.index for info in client.engines] == [0]
    assert client.loads[0] is not None
    assert (client.failure, client.num_dropped) == (None, 0)


def test_leaving_a_loop_aborts_its_request(
    client: BlockingEngineClient, engine: ServedEngine
) -> None:
    """The device lets go of the request long before its budget."""
    with client.generate(request("r1", 5, budget=100_000)) as stream:
        next(stream)
    released = threading.Event()
    while not engine.plane.released:
        released.wait(0.002)
    assert engine.plane.released[0][1] < 100


def test_another_thread_may_abort(client: BlockingEngineClient) -> None:
    """The loop that reads the stream ends with the abort."""
    stream = client.generate(request("r1", 5, budget=100_000))
    threading.Timer(0.02, lambda: client.abort("r1")).start()
    last = list(stream)[-1]
    assert last.finish is not None
    assert last.finish.kind is FinishKind.ABORT


def test_errors_come_through(client: BlockingEngineClient) -> None:
    """An id in flight and an unknown rank are what they are with asyncio."""
    stream = client.generate(request("r1", 5, budget=1000))
    with pytest.raises(RequestInUseError):
        client.generate(request("r1", 5))
    with pytest.raises(ValueError, match="rank"):
        client.generate(request("r2", 5), rank=7)
    stream.close()


def test_a_closed_client_says_so(client: BlockingEngineClient) -> None:
    """Calls after the close raise; a stream that was open ends with an error; closing again is
    nothing."""
    stream = client.generate(request("r1", 5, budget=100_000))
    reader = threading.Thread(target=client.close)
    reader.start()
    with pytest.raises((EngineUnavailableError, RuntimeError)):
        list(stream)
    reader.join()
    with pytest.raises(RuntimeError, match="closed"):
        client.abort("r1")
    stream.close()
    client.close()
