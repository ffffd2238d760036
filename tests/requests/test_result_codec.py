# SPDX-License-Identifier: MIT
"""A forward's result on its way to the other pipeline stages."""

from __future__ import annotations

from tokenspeed_core.requests.result_codec import decode, encode
from tokenspeed_hookspecs import FinishKind, FinishReason, ForwardResult


def test_endings_arrive_as_they_were() -> None:
    """Each row keeps its reason, whole."""
    endings = {
        0: FinishReason(FinishKind.STOP, matched=7),
        3: FinishReason(FinishKind.ABORT, message="no", status_code=400, error_type=5),
    }
    result = ForwardResult([1, 2, 3, 4], endings=endings)
    assert decode(encode(result)).endings == endings


def test_what_was_compiled_arrives() -> None:
    """Whoever reports is seldom the stage that samples."""
    arrived = decode(encode(ForwardResult([1], compiles=2, compile_seconds=0.5)))
    assert (arrived.compiles, arrived.compile_seconds) == (2, 0.5)
