# SPDX-License-Identifier: MIT
"""A server on a real port over an engine in this process, on the scripted plane."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import httpx2
import openai
import pytest
from attrs import define

from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.engine import LocalEngine
from tokenspeed_core.testing.local_client import LocalClient, local_deployment
from tokenspeed_core.testing.scripted_plane import ScriptedDataPlane
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_hookspecs import ServingContext, Tokenizer
from tokenspeed_openai.options import Options
from tokenspeed_openai.server import OpenAIServer

MODEL = "scripted"


@define(eq=False)
class Site:
    """A running server: its address, and everything behind it."""

    url: str
    engine: LocalEngine
    client: LocalClient
    stop: Callable[[], None]

    @property
    def plane(self) -> ScriptedDataPlane:
        plane = self.engine.rank.data_plane
        assert isinstance(plane, ScriptedDataPlane)
        return plane

    def http(self, **more: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=30, **more)

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def post(self, path: str, body: object, **more: Any) -> httpx2.Response:
        with self.http() as http:
            return http.post(path, json=body, **more)


StartServer = Callable[..., Site]


@pytest.fixture
def start() -> Iterator[StartServer]:
    """Start servers; they and their engines are stopped at the end."""
    with ExitStack() as stack:

        def start(
            tokenizer: Tokenizer | None = None,
            *,
            plane: dict[str, Any] | None = None,
            features: tuple[str, ...] = (),
            **options: Any,
        ) -> Site:
            return _start(stack, Options(port=0, **options), plane=plane or {}, features=features)

        yield start


@pytest.fixture
def site(start: StartServer) -> Site:
    """A server with the usual options."""
    return start()


def _start(stack: ExitStack, options: Options, *, plane: dict[str, Any], features: Any) -> Site:
    config = EngineConfig(
        engine=EngineSection(data_plane="scripted"),
        scheduler=SchedulerSection(page_size=16, num_pages=513, max_batch_size=16),
        data_plane={"vocab_size": 2048, "max_model_len": 512, "forward_ms": 1.0, **plane},
        without=("batch_log", "finish_line"),
    )
    tokenizer = small_tokenizer()
    engine, client = local_deployment(config, tokenizer, features=features)
    stack.enter_context(engine)
    url: Future[str] = Future()
    context = ServingContext(
        client=client,
        tokenizer=tokenizer,
        model=MODEL,
        log=logging.getLogger("test"),
        ready=url.set_result,
    )
    stop = _serve_in_thread(OpenAIServer(options), context, url=url)
    stack.callback(stop)
    return Site(url.result(timeout=10), engine, client, stop)


def _serve_in_thread(
    server: OpenAIServer, context: ServingContext, *, url: Future[str]
) -> Callable[[], None]:
    loop = asyncio.new_event_loop()
    task: list[asyncio.Task[None]] = []

    async def serve() -> None:
        task.append(asyncio.ensure_future(server.serve(context)))
        await asyncio.wait(task)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()

    def stop() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(task[0].cancel)
            thread.join()
            loop.close()

    return stop
