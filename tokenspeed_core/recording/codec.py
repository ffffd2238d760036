# SPDX-License-Identifier: MIT
"""What crosses a rank's ports as plain values, and digests of what it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from tokenspeed_core.requests import result_codec
from tokenspeed_hookspecs import (
    CacheAcknowledgment,
    CacheOperationKind,
    ControlReply,
    FinishReason,
    ForwardResult,
    OutputBatch,
    Plan,
)

DIGEST_BYTES = 8


def result_to_plain(result: ForwardResult) -> tuple[bytes, dict[int, Any]]:
    """A forward's result, and the endings that extensions gave it."""
    endings = {int(row): msgspec.to_builtins(end) for row, end in result.endings.items()}
    return result_codec.encode(result), endings


def result_from_plain(plain: Any) -> ForwardResult:
    """The result again."""
    payload, endings = plain
    result = result_codec.decode(payload)
    result.endings = {
        int(row): msgspec.convert(end, FinishReason) for row, end in dict(endings).items()
    }
    return result


def acknowledgments_to_plain(done: Sequence[CacheAcknowledgment]) -> list[tuple[int, str]]:
    """Operations whose bytes are in place."""
    return [(each.op_id, each.kind.value) for each in done]


def acknowledgments_from_plain(plain: Any) -> list[CacheAcknowledgment]:
    """The acknowledgments again."""
    return [CacheAcknowledgment(op_id, CacheOperationKind(kind)) for op_id, kind in plain]


def reply_to_plain(reply: ControlReply) -> Any:
    """A device's answer to an operation."""
    return msgspec.to_builtins(reply, enc_hook=_plain)


def reply_from_plain(plain: Any) -> ControlReply:
    """The reply again."""
    return msgspec.convert(plain, ControlReply)


def outputs_digest(outputs: OutputBatch) -> bytes:
    """What tells two rounds' chunks apart."""
    return _digest(outputs)


def reply_digest(reply: ControlReply) -> bytes:
    """What tells two replies apart."""
    return _digest(reply)


def plan_digest(plan: Plan) -> bytes:
    """What tells two plans' work for the device apart."""
    batch = plan.batch
    operations = [(each.op_id, each.kind.value) for each in plan.operations]
    if batch is None:
        return _digest(operations)
    tables = [table.tobytes() for table in batch.block_tables.values()]
    rows = (batch.request_ids, batch.slots.tolist(), batch.input_lengths, batch.num_extends)
    return _digest((operations, rows, tables))


def _digest(value: object) -> bytes:
    payload = msgspec.msgpack.encode(value, enc_hook=_plain)
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()


def _plain(value: Any) -> object:
    """Numbers and arrays of numpy as Python's; anything else by what it says of its type."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__qualname__
