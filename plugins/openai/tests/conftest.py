# SPDX-License-Identifier: MIT
"""A server on a real port over an engine in this process, on the scripted plane."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import httpx2
import openai
import pytest
from attrs import define, field, fields, frozen

from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.engine import LocalEngine
from tokenspeed_core.testing.local_client import LocalClient, local_deployment
from tokenspeed_core.testing.scripted_plane import ScriptedDataPlane
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_hookspecs import Plugin, ServingContext, Tokenizer
from tokenspeed_openai.options import Options
from tokenspeed_openai.server import OpenAIServer

MODEL = "scripted"
VOCAB_SIZE = 2048
CHAT = [{"role": "user", "content": "hi"}]


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

    def http(self, timeout_s: float = 30.0) -> httpx2.Client:
        # Reading the system's certificates would take longer than a test.
        return httpx2.Client(base_url=self.url, timeout=timeout_s, verify=False)

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def get(self, path: str, key: str | None = None) -> httpx2.Response:
        with self.http() as http:
            return http.get(path, headers=_headers(key))

    def post(self, path: str, body: object, key: str | None = None) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.http() as http:
            return http.post(path, content=content, headers=_headers(key))

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that is certain to come."""
        for _ in range(1000):
            if condition():
                return
            time.sleep(0.01)
        raise AssertionError("it never came")

    @property
    def tokens_given(self) -> dict[str, int]:
        """How many tokens each request that left the data plane was given."""
        return dict(self.plane.released)


StartServer = Callable[..., Site]


@pytest.fixture
def start() -> Iterator[StartServer]:
    """Start servers by fields of `Setup` and options; they are stopped at the end."""
    with ExitStack() as stack:

        def start(**wishes: Any) -> Site:
            names = {field.name for field in fields(Setup)}
            setup = Setup(**{name: wishes.pop(name) for name in names & wishes.keys()})
            return start_site(stack, setup, Options(port=0, **wishes))

        yield start


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """A server with the usual options, for all tests that leave it as it was."""
    with ExitStack() as stack:
        yield start_site(stack, Setup(), Options(port=0))


@frozen(kw_only=True)
class Setup:
    """What differs from the usual engine: context 512, up to 16 requests, a millisecond a forward.

    `plane` are options of the scripted plane.
    """

    plane: Mapping[str, Any] = field(factory=dict)
    plugins: tuple[type[Plugin], ...] = ()
    tokenizer: Tokenizer | None = field(factory=small_tokenizer)
    composition: Mapping[str, Any] = field(factory=dict)
    drain_timeout_s: float = 5.0


def start_site(stack: ExitStack, setup: Setup, options: Options) -> Site:
    """Start an engine and a server; both stop with the stack."""
    plane = {"vocab_size": VOCAB_SIZE, "max_model_len": 512, "forward_ms": 1.0, **setup.plane}
    config = EngineConfig(
        engine=EngineSection(data_plane="scripted"),
        scheduler=SchedulerSection(page_size=16, num_pages=513, max_batch_size=16),
        data_plane=plane,
        without=("batch_log", "finish_line"),
    )
    engine, client = local_deployment(config, setup.tokenizer, plugins=setup.plugins)
    stack.enter_context(engine)
    url: Future[str] = Future()
    context = ServingContext(
        client=client,
        tokenizer=setup.tokenizer,
        model=MODEL,
        log=logging.getLogger("test"),
        ready=url.set_result,
        composition=setup.composition,
        drain_timeout_s=setup.drain_timeout_s,
    )
    stop = _serve_in_thread(OpenAIServer(options), context)
    stack.callback(stop)
    return Site(url.result(timeout=60), engine, client, stop)


def _serve_in_thread(server: OpenAIServer, context: ServingContext) -> Callable[[], None]:
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


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}
