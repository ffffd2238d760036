# SPDX-License-Identifier: MIT
"""Admission stages: what a request waits for before the scheduler knows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from tokenspeed_hookspecs.requests import Request


@frozen
class Pass:
    """The request goes on to the next stage."""


@frozen
class Hold:
    """The request stays in this stage and is polled each round."""


@frozen
class Refuse:
    """The request ends with an abort that carries this message; 400 marks the client's error."""

    message: str
    status_code: int | None = None


Verdict = Pass | Hold | Refuse


class AdmissionStage(Protocol):
    """One thing a request waits for, that every replica rank must have before it runs.

    The core keeps the queue in arrival order, and does aborts, pauses, drains and failure
    outputs. A request that ended while held leaves the stage without `settle`; `leave` says so.
    """

    @property
    def name(self) -> str:
        """What messages and traces call the stage."""
        ...

    def enter(self, request: Request) -> Verdict:
        """Take a registered request. Must not block: start work elsewhere and hold."""
        ...

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """One small code a held request, in the same order; the replica agrees on the MIN."""
        ...

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Turn agreed codes into verdicts, one a request; the same on every rank."""
        ...

    def leave(self, request_id: str) -> None:
        """Forget a held request that ended otherwise (aborted, cancelled)."""
        ...
