# SPDX-License-Identifier: MIT
"""Messages and acknowledgments reach every member of a replica alike."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.cache_ledger import CacheLedger
from tokenspeed_core.loop.relay import Relay, decode, encode
from tokenspeed_core.ranks.single import SingleGroup
from tokenspeed_core.wire.packing import Tensor, TensorBytes
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    CacheAcknowledgment,
    CacheOperation,
    CacheOperationKind,
    ControlRequest,
    LogprobOptions,
    Message,
    SamplingParams,
)

WRITE_BACK = CacheOperationKind.WRITE_BACK


class Followed(SingleGroup):
    """A replica whose first member is here, and the other hears what it is told."""

    size = 2


class Pair:
    """A replica of two whose other member has acknowledged `other`."""

    size = 2
    index = 1

    def __init__(self, other: list[tuple[int, str]]) -> None:
        self.other = other

    def agree_min(self, values: object) -> list[int]:
        raise AssertionError("acknowledgments are intersected, not reduced")

    agree_max = total = agree_min

    def gather(self, payload: bytes) -> list[bytes]:
        return [json.dumps(self.other).encode(), payload]

    def broadcast(self, source: int, payload: bytes) -> bytes:
        raise AssertionError("acknowledgments are gathered")


def test_relayed_messages_come_out_as_they_went_in() -> None:
    """Every message kind survives the relay, with order, defaults and features."""
    sampling = SamplingParams(stop=["a"], stop_token_ids=[4], logit_bias={3: 0.5}, seed=7)
    sent: list[Message] = [
        AddRequest("a", [1, 2], sampling, True, LogprobOptions(0, 2), {"k": {"x": 1}}),
        AbortRequests(("a", "b")),
        ControlRequest("pause", {"mode": "keep"}),
    ]
    stop, now, received = decode(encode(True, sent, now=7.5))
    assert now == 7.5
    assert stop
    assert received == sent


def test_what_a_wire_reads_can_be_relayed() -> None:
    """A tensor's bytes reach the other members as bytes, numpy's numbers as numbers."""
    tensor = Tensor("float32", [1], TensorBytes(b"abcd"))
    sent: list[Message] = [
        AddRequest("a", [1], features={"t": tensor}),
        ControlRequest("own", {"t": tensor, "x": np.float32(0.5)}),
    ]
    _, _, (add, control) = decode(encode(False, sent, now=0.0))
    assert isinstance(add, AddRequest)
    assert add.features == {"t": ["float32", [1], b"abcd"]}
    assert control == ControlRequest("own", {"t": ["float32", [1], b"abcd"], "x": 0.5})


def test_the_owner_sees_what_the_others_see() -> None:
    """A value that is decoded as another kind is of that kind on the first member as well."""
    tensor = Tensor("float32", [1], TensorBytes(b"abcd"))
    plain = ControlRequest("own", {"t": ["x", {"y": None}], "n": 1.5})
    for given in (ControlRequest("own", {"t": tensor}), AddRequest("a", [1], features={"t": (1,)})):
        told = Relay(Followed()).exchange(False, [given, plain], now=0.0, reports=None).messages
        assert told == decode(encode(False, [given, plain], now=0.0))[2]
        assert told[0] != given
    assert Relay(Followed()).exchange(False, [plain], now=0.0, reports=None).messages[0] is plain


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", encode(False, [], now=0.0)[:-1], b"\x92\xc3\x91\x92\x09\xc0"]
)
def test_a_relayed_payload_that_does_not_decode_ends_the_rank(payload: bytes) -> None:
    """Garbage from the owner is an engine error, since members could not stay alike."""
    with pytest.raises(EngineError, match="do not decode"):
        decode(payload)


def test_an_acknowledgment_waits_until_every_member_has_it() -> None:
    """What one member lacks is kept, and handed over in the round it has it, in id order."""
    other: list[tuple[int, str]] = [(2, "write_back")]
    ledger = CacheLedger(Pair(other))
    ledger.dispatched([CacheOperation(op, WRITE_BACK) for op in (1, 2)])
    both = [CacheAcknowledgment(2, WRITE_BACK), CacheAcknowledgment(1, WRITE_BACK)]
    assert [done.op_id for done in ledger.acknowledge(both)] == [2]
    assert ledger.num_open == 1
    other[:] = [(1, "write_back")]
    assert [done.op_id for done in ledger.acknowledge([])] == [1]
    assert ledger.num_open == 0


def test_an_acknowledgment_nobody_waits_for_is_an_engine_error() -> None:
    """An unknown operation, and one acknowledged before, mean plane and plan disagree."""
    ledger = CacheLedger(Pair([]))
    ledger.dispatched([CacheOperation(1, WRITE_BACK)])
    ledger.acknowledge([CacheAcknowledgment(1, WRITE_BACK)])
    for op in (1, 9):
        with pytest.raises(EngineError, match=f"operation {op}"):
            ledger.acknowledge([CacheAcknowledgment(op, WRITE_BACK)])
