# SPDX-License-Identifier: MIT
"""HELLO, INIT, READY and the ready response."""

from __future__ import annotations

import msgspec
import pytest
from attrs import evolve

from tokenspeed_core.wire.handshake import (
    HELLO,
    Init,
    ParallelSizes,
    pack_identity,
    pack_init,
    pack_ready,
    pack_status,
    unpack_identity,
    unpack_init,
    unpack_ready,
    unpack_status,
)
from tokenspeed_core.wire.packing import WireError
from tokenspeed_hookspecs import EngineInfo

HELLO_BYTES = bytes.fromhex(
    "84a6737461747573a548454c4c4fa56c6f63616cc3a8686561646c657373c3"
    "b4706172616c6c656c5f636f6e6669675f68617368c0"
)
INFO = EngineInfo(
    index=3,
    model="tiny",
    max_model_len=4096,
    vocab_size=100,
    page_size=16,
    num_pages=64,
    dtype="float32",
    version="tokenspeed-1",
    max_num_seqs=8,
    features=("regex",),
    details={"plugins": ["a"]},
)
GATEWAY_NEEDS = {
    "max_model_len",
    "num_gpu_blocks",
    "prefix_granularity",
    "dtype",
    "vllm_version",
    "world_size",
    "data_parallel_size",
}


def test_hello_is_the_documented_bytes() -> None:
    """HELLO is the documented map, byte for byte."""
    assert pack_status(HELLO) == HELLO_BYTES
    assert unpack_status(HELLO_BYTES) == HELLO


@pytest.mark.parametrize(("index", "identity"), [(0, b"\0\0"), (1, b"\1\0"), (258, b"\2\1")])
def test_an_identity_is_two_bytes(index: int, identity: bytes) -> None:
    """An engine's identity is its index, little-endian."""
    assert pack_identity(index) == identity
    assert unpack_identity(identity) == index


@pytest.mark.parametrize("is_own_client", [False, True])
def test_init_tells_addresses_and_dialect(is_own_client: bool) -> None:
    """INIT names the two addresses, and our own client by a key a gateway does not send."""
    init = Init("ipc://in", "ipc://out", is_own_client)
    assert unpack_init(pack_init(init)) == init
    assert ("dialect" in msgspec.msgpack.decode(pack_init(init))) is is_own_client


def test_the_gateway_finds_its_keys() -> None:
    """The ready response has every key whose absence fails the gateway's handshake."""
    ready = msgspec.msgpack.decode(pack_ready(INFO, ParallelSizes(data_parallel_size=2)))
    assert ready.keys() >= GATEWAY_NEEDS
    assert (ready["num_gpu_blocks"], ready["data_parallel_size"]) == (64, 2)


def test_our_client_reads_all_of_it() -> None:
    """The ready response and the identity make up the whole engine info."""
    assert unpack_ready(pack_ready(INFO, ParallelSizes()), engine_index=3) == INFO


def test_every_key_has_a_default() -> None:
    """A ready response without keys is read with defaults."""
    assert unpack_ready(b"\x80", engine_index=0).dtype == "bfloat16"


def test_an_unknown_dtype_is_not_guessed() -> None:
    """Only the three dtypes of the wire are sent or read."""
    with pytest.raises(WireError, match="expected one of bfloat16, float16, float32, got 'int8'"):
        pack_ready(evolve(INFO, dtype="int8"), ParallelSizes())
    with pytest.raises(WireError, match="got 'int8'"):
        unpack_ready(msgspec.msgpack.encode({"dtype": "int8"}), engine_index=0)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({}, "missing required field `addresses`"),
        ({"addresses": {"inputs": [], "outputs": ["o"]}}, "an address in 'inputs'"),
        ({"addresses": {"inputs": ["i"], "outputs": []}}, "an address in 'outputs'"),
    ],
)
def test_an_init_without_addresses_is_an_error(message: object, text: str) -> None:
    """The engine cannot go on without an input and an output address."""
    with pytest.raises(WireError, match=text):
        unpack_init(msgspec.msgpack.encode(message))


def test_an_unknown_status_is_an_error() -> None:
    """Only HELLO and READY are said in a handshake."""
    with pytest.raises(WireError, match="got 'BYE'"):
        unpack_status(msgspec.msgpack.encode({"status": "BYE"}))
