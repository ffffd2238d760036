# SPDX-License-Identifier: MIT
"""A front end of a few lines: each line of a connection is a request, each chunk a line back.

`{"id": "a", "prompt": [1, 2], "max_tokens": 3}` asks for tokens, `{"control": "pause", "arguments":
{"mode": "wait"}}` for a control operation.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from attrs import frozen

from tokenspeed_hookspecs import (
    AddRequest,
    ControlRequest,
    EngineUnavailableError,
    SamplingParams,
    ServingContext,
)

HOST = "127.0.0.1"


@frozen(kw_only=True)
class LineOptions:
    """Port 0 is any that is free."""

    port: int = 0
    greeting: str = ""


class LineServer:
    """A `FrontendServer` for tests."""

    Options: ClassVar[type] = LineOptions

    def __init__(self, options: LineOptions) -> None:
        self._options = options

    def check(self) -> Sequence[str]:
        """A port that is taken is the only problem there can be."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self._options.port))
            except OSError as error:
                return [f"port: {HOST}:{self._options.port} cannot be had: {error.strerror}"]
        return []

    def example(self, url: str, model: str) -> str:
        """A line to try."""
        return f"echo '{{}}' | nc {url} # {model}"

    async def serve(self, context: ServingContext) -> None:
        """Serve until cancelled; what runs then may come to its end."""
        running: set[asyncio.Task[None]] = set()
        writers: set[asyncio.StreamWriter] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.add(writer)
            async for line in reader:
                task = asyncio.create_task(_answer(context, json.loads(line), writer=writer))
                running.add(task)
                task.add_done_callback(running.discard)
            writers.discard(writer)
            writer.close()

        server = await asyncio.start_server(connected, HOST, self._options.port)
        host, port = server.sockets[0].getsockname()
        context.ready(f"tcp://{host}:{port}")
        try:
            await server.serve_forever()
        finally:
            server.close()
            if running:
                await asyncio.wait(running, timeout=context.drain_timeout_s)
            for task in running:
                task.cancel()
            for writer in writers:
                writer.close()
            await server.wait_closed()


async def _answer(
    context: ServingContext, asked: Mapping[str, Any], *, writer: asyncio.StreamWriter
) -> None:
    try:
        async for message in _answers(context, asked):
            writer.write(json.dumps(message).encode() + b"\n")
            await writer.drain()
    except EngineUnavailableError as error:
        writer.write(json.dumps({"error": str(error)}).encode() + b"\n")


async def _answers(
    context: ServingContext, asked: Mapping[str, Any]
) -> AsyncIterator[Mapping[str, Any]]:
    if "control" in asked:
        request = ControlRequest(asked["control"], asked.get("arguments", {}))
        replies = await context.client.control(request)
        yield {"replies": [[reply.success, reply.message] for reply in replies]}
        return
    sampling = SamplingParams(max_new_tokens=asked["max_tokens"], temperature=0.0, ignore_eos=True)
    stream = await context.client.generate(AddRequest(asked["id"], asked["prompt"], sampling))
    async for chunk in stream:
        finish = chunk.finish.kind.value if chunk.finish else None
        yield {"token_ids": chunk.token_ids, "finish": finish}
