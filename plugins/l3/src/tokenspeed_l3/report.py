# SPDX-License-Identifier: MIT
"""What a rank tells the others at the head of a round, and its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenspeed_l3.errors import L3Error


class Completion(msgspec.Struct, frozen=True, array_like=True):
    """How an operation ended on this rank: a byte a key, 0 or 1."""

    op_id: int
    success: bytes
    failed: bytes
    is_retired: bool = True


class Report(msgspec.Struct, frozen=True, array_like=True):
    """How far this rank's executor is behind, whether its store may be asked, and what ended since
    the last report, in the order of the operations' ids."""

    queued_operations: int = 0
    queued_bytes: int = 0
    oldest_operation_us: int = 0
    is_available: bool = True
    completions: Sequence[Completion] = ()


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Report)
QUIET = Report()  # what most rounds have to say
QUIET_BYTES = _ENCODER.encode(QUIET)


def encode(report: Report) -> bytes:
    """The report's bytes; a handful where nothing ended."""
    return QUIET_BYTES if report is QUIET else _ENCODER.encode(report)


def decode(payload: bytes, *, member: int) -> Report:
    """The report of a member of the replica. L3Error: it is none."""
    try:
        return _DECODER.decode(payload)
    except msgspec.MsgspecError as error:
        raise L3Error(
            f"the storage report of replica member {member}, {len(payload)} bytes, does not "
            f"decode ({error}); its members must run the same version of tokenspeed-l3"
        ) from error
