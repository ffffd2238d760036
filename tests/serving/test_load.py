# SPDX-License-Identifier: MIT
"""Many clients at once on `tokenspeed serve` with a real model: right answers, and no leaks.

`TOKENSPEED_LOAD_S` is how long the load lasts, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest
from attrs import field, frozen

from tokenspeed_core import compose

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLIENTS, TOKENS, WARM_S = 64, 12, 2.0
LOAD_S = float(os.environ.get("TOKENSPEED_LOAD_S", "3"))
STEADY_LIMIT_S = 60.0
# Of the front end and of the engine. The engine's memory grows in steps as batches of new sizes
# come, by 150 MB in half a minute; this bound cannot tell a small leak from that.
GROWTH_BYTES = (16 << 20, 256 << 20)
# In bfloat16 two tokens can be equally likely, and which comes first is up to the batch. With a
# page for each client, and few more, all of the cache is in use after the first requests.
FLAGS = ("--model", "smollm2-135m", "--dtype", "float32", "--num-pages", "73")
TOPICS = ("The sea is", "In 1905", "A good cook", "My dog", "Rain fell on", "Once upon a time")
PROMPTS = [f"{topic}{' and so on' * more}" for topic in TOPICS for more in range(4)]


@frozen
class Load:
    """Closed-loop clients of one server, and what they were answered, by prompt."""

    url: str
    answers: dict[str, Counter[tuple[int, ...]]] = field(factory=dict)

    async def run(self, seconds: float) -> int:
        """Keep every client busy for so long; returns how many requests ended."""
        until = time.monotonic() + seconds
        counts = await asyncio.gather(*(self._client(at, until) for at in range(CLIENTS)))
        return sum(counts)

    async def _client(self, at: int, until: float) -> int:
        count = 0
        while not count or time.monotonic() < until:
            prompt = PROMPTS[(at + count) % len(PROMPTS)]
            self.answers.setdefault(prompt, Counter())[await self._ask(prompt)] += 1
            count += 1
        return count

    async def _ask(self, prompt: str) -> tuple[int, ...]:
        """The tokens of one streamed answer, which must end once."""
        events = await _stream(self.url, {"prompt": prompt, "max_tokens": TOKENS})
        assert events[-1] == "[DONE]"
        choices = [json.loads(event)["choices"][0] for event in events[:-1]]
        ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        assert ends == ["length"]
        assert choices[-1]["finish_reason"] == "length"
        return tuple(token for choice in choices for token in choice["token_ids"])


async def _stream(url: str, asked: dict[str, Any]) -> list[str]:
    wishes = {"temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True}
    content = json.dumps({**asked, **wishes}).encode()
    parts = urlsplit(url)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(head.encode() + content)
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 200 "), answer
    lines = answer.splitlines()
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


@frozen
class Holdings:
    """What the server's two processes hold once nothing runs."""

    sizes: dict[str, int]
    descriptors: list[int]
    threads: list[int]
    resident_bytes: list[int]

    @classmethod
    def of(cls, url: str, processes: list[psutil.Process]) -> Holdings:
        """Look, once the last connection is gone."""
        with urlopen(f"{url}/engine/describe") as answer:
            values = json.load(answer)["replies"][0]["values"]
        return cls(
            values["sizes"],
            _steady(lambda: [each.num_fds() for each in processes]),
            [each.num_threads() for each in processes],
            [each.memory_info().rss for each in processes],
        )


def _steady(look: Callable[[], list[int]]) -> list[int]:
    """What looks tell for a second; on a busy machine a connection may take that long to go."""
    limit, same, last = time.monotonic() + STEADY_LIMIT_S, 0, look()
    while same < 20:
        assert time.monotonic() < limit, f"never the same for a second, at last {last}"
        time.sleep(0.05)
        found = look()
        same, last = (same + 1 if found == last else 0), found
    return last


@pytest.fixture
def expected() -> dict[str, tuple[int, ...]]:
    """Each prompt's tokens, from an engine in this process."""
    with compose("smollm2-135m", dtype="float32") as engine:
        done = engine.generate(PROMPTS, max_new_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    return {p: tuple(one.token_ids) for p, one in zip(PROMPTS, done, strict=True)}


def test_every_request_ends_once_and_nothing_leaks(
    command: Callable[..., Any], expected: dict[str, tuple[int, ...]]
) -> None:
    """64 clients get the tokens they get offline; then pages, tables, descriptors, threads and
    memory are as before."""
    server = command("serve", *FLAGS, "--port", "0", "--json")
    server.wait_for("loading")
    load = Load(server.wait_for("ready")["url"])
    processes = [psutil.Process(server.process.pid), server.engine]
    asyncio.run(load.run(WARM_S))
    before = Holdings.of(load.url, processes)
    ended = asyncio.run(load.run(LOAD_S))
    after = Holdings.of(load.url, processes)

    assert ended >= CLIENTS
    assert {prompt: set(found) for prompt, found in load.answers.items()} == {
        prompt: {tokens} for prompt, tokens in expected.items()
    }
    assert after.sizes["registered"] == after.sizes["active_pages"] == 0
    assert after.sizes["waiting"] == after.sizes["decoding"] == 0
    assert after.descriptors == before.descriptors
    assert after.threads == before.threads
    memory = zip(after.resident_bytes, before.resident_bytes, GROWTH_BYTES, strict=True)
    assert all(grown - then < allowed for grown, then, allowed in memory)
    assert server.stop()[0] == 0
