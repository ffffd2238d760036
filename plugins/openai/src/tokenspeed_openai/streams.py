# SPDX-License-Identifier: MIT
"""Answers that end when their client does: server-sent events, and the watch over a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from tokenspeed_hookspecs import EngineUnavailableError
from tokenspeed_openai.errors import ApiError, ErrorBody, unavailable

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGoneError(Exception):
    """The client closed the connection; nobody reads an answer."""


async def until_gone(
    receive: Receive, work: Awaitable[T], *, is_cutting: asyncio.Event | None = None
) -> T:
    """Do the work, or cancel it when the client leaves; its body must have been read.

    ClientGoneError: it left. ApiError: the server stops and waits no longer. Whoever cancels this
    cancels the work.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    waiting: list[asyncio.Future[Any]] = [working, leaving]
    if is_cutting is not None:
        waiting.append(asyncio.create_task(is_cutting.wait()))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if leaving.done():
            raise ClientGoneError
        raise unavailable("the server is stopping")
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def event(data: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class EventStream:
    """An ASGI response of events that are ready to be sent.

    It begins with the first event, so that an error before it still has its own status; a later
    one becomes the last event.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        headers: list[tuple[bytes, bytes]],
        *,
        is_cutting: asyncio.Event,
    ) -> None:
        self._events = events
        self._headers = [*HEADERS, *headers]
        self._is_cutting = is_cutting
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the last, or until the client leaves or the server stops."""
        try:
            await until_gone(receive, self._send(send), is_cutting=self._is_cutting)
        except ClientGoneError:
            return
        except ApiError as error:
            if not self._has_begun:
                raise
            await _send_part(send, event(ErrorBody(error.detail)))
            await _end(send)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await _send_part(send, first)
            try:
                async for data in events:
                    await _send_part(send, data)
            except ApiError as error:
                await _send_part(send, event(ErrorBody(error.detail)))
            except EngineUnavailableError as error:
                await _send_part(send, event(ErrorBody(unavailable(error).detail)))
            await _end(send)


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_part(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
