# SPDX-License-Identifier: MIT
"""Control requests and the replies of every engine.

A reply says which operation it answers and no more. So one request of a name is out at a time and
the next ones wait for its last reply, even where nobody waits for that any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from attrs import define, field

from tokenspeed_hookspecs import ControlReply, EngineUnavailableError

Send = Callable[[list[bytes]], None]


@define(eq=False)
class _Exchange:
    """A request and the replies so far, by the engines' places."""

    frames: list[bytes]
    answer: asyncio.Future[list[ControlReply]]
    replies: dict[int, ControlReply] = field(factory=dict)


@define(eq=False)
class ControlQueue:
    """Asks every engine and gathers one reply from each; `send` sends frames to all of them."""

    _num_engines: int
    _send: Send
    _by_name: dict[str, deque[_Exchange]] = field(factory=dict, init=False)

    async def ask(
        self, name: str, frames: list[bytes], *, timeout_s: float | None
    ) -> list[ControlReply]:
        """The replies in engine order; TimeoutError past the limit."""
        exchange = _Exchange(frames, asyncio.get_running_loop().create_future())
        queue = self._by_name.setdefault(name, deque())
        queue.append(exchange)
        if queue[0] is exchange:
            self._send(frames)
        try:
            async with asyncio.timeout(timeout_s):
                return await exchange.answer
        except TimeoutError:
            missing = self._num_engines - len(exchange.replies)
            raise TimeoutError(
                f"control operation {name!r}: {missing} of {self._num_engines} engines did not "
                f"answer within {timeout_s} s; it may still be carried out"
            ) from None
        finally:
            if exchange in queue and queue[0] is not exchange:
                queue.remove(exchange)  # it was never sent

    def take(self, position: int, reply: ControlReply) -> bool:
        """Note one engine's reply; False if nobody asked that engine."""
        queue = self._by_name.get(reply.name)
        if not queue or position in queue[0].replies:
            return False
        exchange = queue[0]
        exchange.replies[position] = reply
        if len(exchange.replies) == self._num_engines:
            queue.popleft()
            self._finish(exchange)
            self._go_on(reply.name, queue)
        return True

    def fail(self, failure: EngineUnavailableError) -> None:
        """End every request with an error."""
        queues, self._by_name = list(self._by_name.values()), {}
        for exchange in [each for queue in queues for each in queue]:
            if not exchange.answer.done():
                exchange.answer.set_exception(failure)

    def _finish(self, exchange: _Exchange) -> None:
        if not exchange.answer.done():
            replies = exchange.replies
            exchange.answer.set_result([replies[each] for each in range(self._num_engines)])

    def _go_on(self, name: str, queue: deque[_Exchange]) -> None:
        if queue:
            self._send(queue[0].frames)
        else:
            del self._by_name[name]
