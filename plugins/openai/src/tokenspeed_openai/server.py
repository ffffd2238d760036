# SPDX-License-Identifier: MIT
"""The front end: one HTTP server for one deployment."""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import msgspec
import uvicorn

from tokenspeed_hookspecs import ServingContext
from tokenspeed_openai import options
from tokenspeed_openai.application import application
from tokenspeed_openai.deployment import Deployment

STARTING_POLL_S = 0.01
LEAVING_S = 1.0


class OpenAIServer:
    """The OpenAI API over HTTP; see `FrontendServer`."""

    Options: ClassVar[type] = options.Options

    def __init__(self, given: options.Options) -> None:
        self._options = given

    def check(self) -> Sequence[str]:
        """Every problem of the options."""
        return options.problems(self._options)

    def example(self, url: str, model: str) -> str:
        """A curl line that gets a short answer."""
        body = msgspec.json.encode(
            {
                "model": model,
                "messages": [{"role": "user", "content": "Say hello in French."}],
                "max_tokens": 32,
            }
        )
        key = "" if self._options.api_key is None else "-H 'Authorization: Bearer YOUR_KEY' "
        trust = "" if self._options.ssl_certfile is None else "-k "
        return (
            f"curl {trust}{url}/v1/chat/completions {key}-H 'Content-Type: application/json' "
            f"-d {shlex.quote(body.decode())}"
        )

    async def serve(self, context: ServingContext) -> None:
        """Serve until cancelled; then what runs may go on for a time, and what is left is cut
        and told so."""
        listening = options.listening_socket(self._options)
        deployment = Deployment(context, self._options)
        server = _Server(self._config(deployment))
        serving = asyncio.create_task(server.serve([listening]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(STARTING_POLL_S)
            if server.started:
                context.ready(self._url(listening))
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            try:
                await asyncio.wait((serving,), timeout=context.drain_timeout_s)
            finally:
                deployment.is_cutting.set()
                await server.cut()
                await serving
                listening.close()

    def _config(self, deployment: Deployment) -> uvicorn.Config:
        given = self._options
        return uvicorn.Config(
            application(deployment),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ssl_certfile=given.ssl_certfile,
            ssl_keyfile=given.ssl_keyfile,
        )

    def _url(self, listening: socket.socket) -> str:
        scheme = "http" if self._options.ssl_certfile is None else "https"
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        return f"{scheme}://{host}:{listening.getsockname()[1]}"


class _Server(uvicorn.Server):
    """Leaves the process's signals to its owner, and can be cut short."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def cut(self) -> None:
        """End what is left: whoever answers was told to, and gets the time to say so."""
        tasks = [*self.server_state.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVING_S)
        self.force_exit = True
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
        for task in tasks:
            task.cancel()
