# SPDX-License-Identifier: MIT
"""Messages on their way to the engines: in order for each engine, without ever blocking.

A message that its engine does not take waits here, and so does everything after it for that engine.
Requests, aborts and control requests share the way, so that none overtakes another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import zmq
from attrs import define, field

RETRY_S = 0.005


# Sends one message whole or not at all: zmq.Again if it is not taken now, another ZMQError if it
# never will be.
Wire = Callable[[list[bytes]], object]


@define(eq=False)
class _Waiting:
    message: list[bytes]
    left: asyncio.Future[None]


@define(eq=False)
class Outgoing:
    """The way to one engine; `fail` is told the reason when it has broken down, and must close it.

    It has when the engine is gone, or takes nothing for `timeout_s`.
    """

    identity: bytes
    _send: Wire
    _timeout_s: float
    _fail: Callable[[str], None]
    _waiting: deque[_Waiting] = field(factory=deque, init=False)
    _stuck_since: float = field(default=0.0, init=False)
    _retry: asyncio.TimerHandle | None = field(default=None, init=False)

    def send(self, frames: Sequence[bytes]) -> asyncio.Future[None] | None:
        """Send a message now, which gives None, or as soon as the engine takes it.

        The result tells when that was; cancelling it withdraws a message that has not left.
        """
        message = [self.identity, *frames]
        if not self._waiting and self._has_left(message):
            return None
        loop = asyncio.get_running_loop()
        left = loop.create_future()
        self._waiting.append(_Waiting(message, left))
        if self._retry is None:
            self._stuck_since = loop.time()
            self._retry = loop.call_later(RETRY_S, self._go_on)
        return left

    def close(self) -> None:
        """Give up what waits; its results end as if it had left."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            _end(each.left)

    def _has_left(self, message: list[bytes]) -> bool:
        """Whether a message needs no further try: it left, or nothing ever will again."""
        try:
            self._send(message)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            self._fail(f"it takes no messages any more ({error})")
        return True

    def _go_on(self) -> None:
        self._retry = None
        loop = asyncio.get_running_loop()
        while self._waiting:
            first = self._waiting[0]
            if not first.left.cancelled() and not self._has_left(first.message):
                break
            self._stuck_since = loop.time()
            if self._waiting:  # else it broke down just now
                self._waiting.popleft()
            _end(first.left)
        if not self._waiting:
            return
        if loop.time() - self._stuck_since > self._timeout_s:
            self._fail(f"it took no message for {self._timeout_s} s")
        else:
            self._retry = loop.call_later(RETRY_S, self._go_on)


def _end(left: asyncio.Future[None]) -> None:
    if not left.done():
        left.set_result(None)
