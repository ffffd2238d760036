# SPDX-License-Identifier: MIT
"""Messages of the contract to frames of the wire and back.

Between our own client and our own engine nothing of a message is lost. A gateway reads and writes
the front part of the same arrays; what is ours stands behind it.

The front end says which it is: an INIT with `"dialect": "tokenspeed-core"` (`Init.is_own_client`)
comes from our own client. Only such a front end gets the own columns of a batch, control replies,
and a second frame in the death notice, which is the two-byte identity of the engine that died.

A request message is `[type byte, payload, tensors...]`, an output message one frame; handshake
messages are in `handshake`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from attrs import frozen

from tokenspeed_core.wire.control import (
    ReceivedReply,
    pack_control,
    unpack_control,
    unpack_reply,
)
from tokenspeed_core.wire.handshake import pack_identity, unpack_identity
from tokenspeed_core.wire.outputs import TAG as BATCH_TAG
from tokenspeed_core.wire.outputs import ReceivedBatch, unpack_batch
from tokenspeed_core.wire.packing import (
    MAX_REQUEST_BYTES,
    WireError,
    decoder_of,
    pack,
    unpack,
)
from tokenspeed_core.wire.requests import pack_request, request_id_in, unpack_request
from tokenspeed_hookspecs import AbortRequests, AddRequest, Message

ADD = b"\x00"
ABORT = b"\x01"
CONTROL = b"\x03"
DEATH = b"ENGINE_CORE_DEAD"


@frozen
class EngineDeath:
    """An engine ended; `engine_index` is None where the notice does not tell which."""

    engine_index: int | None = None


Output = ReceivedBatch | ReceivedReply | EngineDeath


def encode_message(message: Message) -> list[bytes]:
    """The frames of a message to an engine; WireError if a value has no place on the wire."""
    if isinstance(message, AddRequest):
        return [ADD, pack_request(message)]
    if isinstance(message, AbortRequests):
        return [ABORT, pack(list(message.request_ids), "an abort")]
    return [CONTROL, pack_control(message)]


def decode_message(frames: Sequence[bytes]) -> Message:
    """The message in an engine's frames, without the identity; WireError if there is none."""
    if len(frames) < 2:
        raise WireError(f"expected a type byte and a payload, got {len(frames)} frame(s)")
    kind, payload = frames[0], frames[1]
    if kind == CONTROL:
        return unpack_control(payload)
    if len(payload) > MAX_REQUEST_BYTES:
        raise WireError(f"expected at most {MAX_REQUEST_BYTES} bytes, got {len(payload)}")
    if kind == ADD:
        return unpack_request(payload, frames[2:])
    if kind == ABORT:
        request_ids = unpack(_IDS, payload, what="an abort")
        return AbortRequests(tuple(request_ids))
    raise WireError(f"expected the message type 00, 01 or 03, got {kind[:16].hex() or 'nothing'}")


def request_id_of(frames: Sequence[bytes]) -> str | None:
    """The id of the request that these frames were to add, if it can be read."""
    is_add = len(frames) > 1 and frames[0] == ADD and len(frames[1]) <= MAX_REQUEST_BYTES
    return request_id_in(frames[1]) if is_add else None


def encode_death(engine_index: int | None = None) -> list[bytes]:
    """The death notice; the index is for our own client only."""
    return [DEATH] if engine_index is None else [DEATH, pack_identity(engine_index)]


def decode_output(frames: Sequence[bytes]) -> Output:
    """What an engine sent: a batch, a control reply or its death; WireError if none of them."""
    if not frames or not frames[0]:
        raise WireError("expected an output message, got an empty one")
    head = frames[0]
    if head == DEATH:
        return EngineDeath(unpack_identity(frames[1]) if len(frames) > 1 else None)
    if _BATCH_HEAD in head[:_HEAD_BYTES]:
        return unpack_batch(head)
    return unpack_reply(head)


_IDS = decoder_of(list[str])
_BATCH_HEAD = msgspec.msgpack.encode(BATCH_TAG)
# An array's header takes up to five bytes before its first element.
_HEAD_BYTES = len(_BATCH_HEAD) + 5
