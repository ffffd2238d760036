# SPDX-License-Identifier: MIT
"""A front end of a few lines: each line of a connection is a request, each chunk a line back.

`{"id": "a", "prompt": [1, 2], "max_tokens": 3}` asks for tokens, `{"control": "pause", "arguments":
{"mode": "wait"}}` for a control operation.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
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
        """Serve until cancelled."""
        connections: set[asyncio.Task[Any]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            async for line in reader:
                try:
                    await _answer(context, json.loads(line), writer=writer)
                except EngineUnavailableError as error:
                    await _write(writer, {"error": str(error)})
            writer.close()
            connections.discard(task)

        server = await asyncio.start_server(connected, HOST, self._options.port)
        host, port = server.sockets[0].getsockname()
        context.ready(f"tcp://{host}:{port}")
        try:
            await server.serve_forever()
        finally:
            for task in connections:
                task.cancel()


async def _answer(
    context: ServingContext, asked: Mapping[str, Any], *, writer: asyncio.StreamWriter
) -> None:
    if "control" in asked:
        request = ControlRequest(asked["control"], asked.get("arguments", {}))
        replies = await context.client.control(request)
        await _write(writer, {"replies": [[reply.success, reply.message] for reply in replies]})
        return
    sampling = SamplingParams(max_new_tokens=asked["max_tokens"], temperature=0.0, ignore_eos=True)
    stream = await context.client.generate(AddRequest(asked["id"], asked["prompt"], sampling))
    async for chunk in stream:
        finish = chunk.finish.kind.value if chunk.finish else None
        await _write(writer, {"token_ids": chunk.token_ids, "finish": finish})


async def _write(writer: asyncio.StreamWriter, message: object) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()
