# SPDX-License-Identifier: MIT
"""The unmodified KV indexer of NVIDIA Dynamo follows the events of two engines.

It is in the package ai-dynamo-runtime, version 1.6.1 when this was written. Where that is installed
elsewhere, TOKENSPEED_DYNAMO_PYTHON names the Python that has it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from tokenspeed_core.testing import EngineFixture, EngineSetup
from tokenspeed_hookspecs import ControlRequest

PYTHON = os.environ.get("TOKENSPEED_DYNAMO_PYTHON")
HAS_IT = PYTHON is not None or importlib.util.find_spec("dynamo") is not None
pytestmark = pytest.mark.skipif(not HAS_IT, reason="ai-dynamo-runtime is not installed")

LIMIT_S = 60.0
BLOCK = 16
FLUSH = ControlRequest("flush_cache")
EARLIER = list(range(500, 520))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@define
class Indexer:
    """The running indexer, asked over HTTP."""

    port: int

    def ask(self, path: str, **body: Any) -> Any:
        """The answer to a request."""
        url, kind = f"http://127.0.0.1:{self.port}{path}", {"content-type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode() if body else None, kind)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            self.ask("/health")
        except OSError:
            return False
        return True

    def follow(self, number: int, addresses: dict[str, str]) -> None:
        """Let it read an engine's events."""
        about = {"instance_id": number, "model_name": "m", "block_size": BLOCK}
        self.ask("/register", **about, **addresses)

    def cached(self, prompt: Sequence[int]) -> list[int]:
        """How many tokens of a prompt each of the two engines has, as the events told."""
        found = self.ask("/query", model_name="m", token_ids=list(prompt))["scores"]
        return [found.get(str(number), {}).get("0", 0) for number in (0, 1)]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s"
        time.sleep(0.02)


@pytest.fixture
def indexer(tmp_path: Path) -> Iterator[Indexer]:
    """An indexer that follows nobody yet."""
    started = Indexer(free_port())
    command = [PYTHON or sys.executable, "-m", "dynamo.indexer", "--port", str(started.port)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(started.is_up)
        yield started
    finally:
        process.kill()
        process.wait()


@define
class Pair:
    """Two engines and the indexer that follows them."""

    indexer: Indexer
    engines: list[EngineFixture]
    num_asked: int = 0

    def run(self, number: int, prompt: Sequence[int], *, budget: int = 1) -> int:
        """Run a request to its end; how many of its tokens the engine had cached."""
        self.num_asked += 1
        name, engine = f"r{self.num_asked}", self.engines[number]
        engine.add(name, list(prompt), budget=budget)
        engine.run_to_end(name)
        engine.rounds(3)
        return int(engine.received[name].chunks[-1].cached_tokens)

    def is_heard(self, number: int) -> bool:
        """Whether the indexer reads this engine already: something new is known there soon."""
        prompt = [7000 + self.num_asked] * (BLOCK + 1)
        self.run(number, prompt)
        time.sleep(0.05)
        return self.indexer.cached(prompt)[number] == BLOCK

    def learns(self, prompt: Sequence[int], expected: Sequence[int]) -> None:
        """Wait until the indexer says this of a prompt."""
        wait_for(lambda: self.indexer.cached(prompt) == list(expected))


Make = Callable[..., Pair]


@pytest.fixture
def pair(site: Any, indexer: Indexer) -> Make:
    """Make both engines, each with a prompt of before it was followed."""

    def make(num_pages: int, **options: str) -> Pair:
        made = Pair(indexer, [])
        for number in (0, 1):
            tcp = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
            addresses = dict(zip(("endpoint", "replay_endpoint"), tcp, strict=True))
            setup = EngineSetup(scheduler={"num_pages": num_pages})
            made.engines.append(site.engine(setup, **addresses, **options))
            made.run(number, EARLIER)
            indexer.follow(number, addresses)
            wait_for(partial(made.is_heard, number))
        return made

    return make


@pytest.mark.parametrize(
    "options", [{"encoding": "array"}, {"encoding": "map_events"}, {"hash_encoding": "int64"}]
)
def test_it_finds_who_holds_a_prefix(pair: Make, options: dict[str, str]) -> None:
    """In both forms that it reads, also what was stored before it followed, and not what was
    flushed."""
    both = pair(1000, **options)
    first, second = list(range(100, 164)), list(range(200, 264))
    both.run(0, first)
    both.run(1, second)
    both.run(1, first[:40])
    both.learns(first, [64, 32])
    both.learns(second, [0, 64])
    both.learns(EARLIER, [16, 16])
    both.engines[1].put(FLUSH)
    both.engines[1].rounds(3)
    both.learns(second, [0, 0])
    both.learns(EARLIER, [16, 0])
    assert both.indexer.cached(first) == [64, 0]


def test_repeats_go_to_the_engine_that_holds_their_prefix(pair: Make) -> None:
    """Prompts that are sent where the indexer says find there just what it says, over evictions
    and flushes."""
    both, dice = pair(40), random.Random(7)
    roots = [[dice.randrange(50) for _ in range(90)] for _ in range(4)]
    for step in range(40):
        prompt = [*dice.choice(roots)[: dice.randint(1, 90)], 100 + step]
        both.run(dice.randrange(2), prompt, budget=dice.randint(1, 30))
        if dice.random() < 0.1:
            both.engines[step % 2].put(FLUSH)
    num_found = 0
    for number, root in enumerate(roots):
        marker = [9000 + number] * (BLOCK + 1)
        for each in (0, 1):
            both.run(each, marker)
        both.learns(marker, [BLOCK, BLOCK])  # so it has read everything before
        told = both.indexer.cached(root)
        holder = told.index(max(told))
        found = both.run(holder, [*root, 8000 + number])
        assert found // BLOCK * BLOCK == told[holder]
        num_found += bool(found)
    assert num_found > 1
