# SPDX-License-Identifier: MIT
"""Frames that went wrong kill nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tokenspeed_core.testing.mutations import mutated
from tokenspeed_core.testing.wire_peer import WirePeer
from tokenspeed_core.wire.codec import decode_message, decode_output, encode_message
from tokenspeed_core.wire.control import pack_reply
from tokenspeed_core.wire.frontend import ZmqFrontend
from tokenspeed_core.wire.handshake import (
    HELLO,
    Init,
    ParallelSizes,
    pack_init,
    pack_ready,
    pack_status,
    unpack_init,
    unpack_ready,
    unpack_status,
)
from tokenspeed_core.wire.outputs import pack_own_batch
from tokenspeed_core.wire.packing import Tensor, TensorBytes, WireError
from tokenspeed_core.wire.settings import WireSettings
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    ChunkDetails,
    ControlReply,
    ControlRequest,
    EngineInfo,
    FinishKind,
    FinishReason,
    Load,
    LogprobOptions,
    Message,
    OutputBatch,
    PromptLogprobs,
    SamplingParams,
)

COUNT = 1000
TENSOR = Tensor("float32", [1], TensorBytes(b"abcd"))
MESSAGES: list[Message] = [
    AddRequest(
        "a",
        [1, 2, 3],
        SamplingParams(stop=("x",), logit_bias={1: 0.5}, stop_token_ids=[4]),
        logprobs=LogprobOptions(0, 2),
        features={"regex": "a", "bootstrap": {"host": "h", "port": 1, "room": 2}, "t": TENSOR},
    ),
    AbortRequests(("a", "b")),
    ControlRequest("pause", {"mode": "keep"}),
    ControlRequest("own", {"a": [1]}),
]
OUTPUTS = OutputBatch(
    *(["a"], [5, 6], [2], [3], [2], [0]),
    {
        0: ChunkDetails(
            FinishReason(FinishKind.STOP, matched=6),
            [-0.5, -1.5],
            [([-0.5], [5]), ([-1.5], [6])],
            PromptLogprobs([None, -0.5], [1, 2], [None, ([-0.5], [2])]),
        )
    },
)


def test_a_request_decodes_or_is_a_wire_error() -> None:
    """No mutation of a message to an engine raises anything but WireError."""
    for message in MESSAGES:
        for frames in mutated(encode_message(message), seed=1, count=COUNT):
            with suppress(WireError):
                decode_message(frames)


@pytest.mark.parametrize("token", ["9" * 20, "-" + "9" * 4000, "9" * 5000, "x"])
def test_a_biased_token_that_is_no_id_is_a_wire_error(token: str) -> None:
    """No number comes in that cannot be told to another rank."""
    kind, payload = encode_message(AddRequest("a", [1], SamplingParams(logit_bias={7: 0.5})))
    assert payload.count(b"\xa17") == 1
    text = msgspec.msgpack.encode(token)
    with pytest.raises(WireError, match="logit_bias"):
        decode_message([kind, payload.replace(b"\xa17", text)])


@pytest.mark.parametrize("levels", [200, 500, 900, 5000, 100_000])
@pytest.mark.parametrize("field", ["arguments", "features", "json_schema"])
def test_deep_values_are_a_wire_error(levels: int, field: str) -> None:
    """Whatever the depth of a value, it does not exhaust the stack."""
    message: Message = ControlRequest("own", {"deep": "DEEP"})
    if field != "arguments":
        message = AddRequest("a", [1], features={field: "DEEP"})
    kind, payload = encode_message(message)
    deep = payload.replace(b"\xa4DEEP", b"\x91" * levels + b"\x01")
    with pytest.raises(WireError):
        decode_message([kind, deep])


def test_deep_control_values_are_not_sent() -> None:
    """What the other end would not read is refused at this one: it would never be answered."""
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(WireError, match=r"'own' cannot be sent: .* 128 levels"):
        encode_message(ControlRequest("own", {"deep": deep}))
    with pytest.raises(WireError, match=r"'own' cannot be sent: .* 128 levels"):
        pack_reply(ControlReply("own", True, "", {"deep": deep}), 0)


@pytest.mark.parametrize(
    "payload",
    [
        pack_own_batch(OUTPUTS, Load(1, 2, 3, 4), engine_index=0),
        pack_reply(ControlReply("pause", False, "no", {"a": 1}), 0),
        pack_reply(ControlReply("own", True), 0),
        b"ENGINE_CORE_DEAD",
    ],
    ids=["batch", "reply", "own reply", "death"],
)
def test_an_output_decodes_or_is_a_wire_error(payload: bytes) -> None:
    """No mutation of a message from an engine raises anything but WireError."""
    for frames in mutated([payload, b"\0\0"], seed=2, count=COUNT):
        with suppress(WireError):
            decode_output(frames)


def test_a_handshake_decodes_or_is_a_wire_error(info: EngineInfo) -> None:
    """No mutation of the handshake's messages raises anything but WireError."""
    cases: list[tuple[bytes, Callable[[bytes], object]]] = [
        (pack_status(HELLO), unpack_status),
        (pack_init(Init("ipc://a", "ipc://b", True)), unpack_init),
        (pack_ready(info, ParallelSizes()), lambda payload: unpack_ready(payload, 0)),
    ]
    for payload, unpack in cases:
        for frames in mutated([payload], seed=3, count=COUNT):
            with suppress(WireError):
                unpack(frames[0])


def test_an_engine_outlives_junk_on_its_input(
    folder: Path, dial: Callable[..., ZmqFrontend]
) -> None:
    """After a thousand mutated frames a request still arrives whole."""
    frontend = dial()
    last = AddRequest("last", [1])
    with WirePeer(folder) as peer:
        peer.accept()
        for message in MESSAGES:
            for frames in mutated(encode_message(message), seed=4, count=COUNT // len(MESSAGES)):
                peer.send_frames(frames)
        peer.send(last)
        while last not in frontend.receive(10.0):
            pass
        assert frontend.num_dropped > COUNT // 2


def test_an_engine_outlives_junk_in_the_handshake(
    folder: Path, dial: Callable[..., ZmqFrontend]
) -> None:
    """However often HELLO is answered with nonsense, the engine finds who answers with sense."""
    frontend = dial(WireSettings(retry_s=0.001, linger_s=0.0))
    with WirePeer(folder) as peer:
        for frames in mutated([pack_init(Init("none://a", "ipc://b"))], seed=5, count=COUNT):
            hello = peer.handshake.recv_multipart()
            # An INIT that still makes sense is answered with READY.
            while unpack_status(hello[1]) != HELLO:
                hello = peer.handshake.recv_multipart()
            peer.handshake.send_multipart([hello[0], *frames])
        peer.accept()
        assert frontend.num_dropped > COUNT // 2
