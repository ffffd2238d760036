# SPDX-License-Identifier: MIT
"""What HTTP costs: streaming clients of `tokenspeed serve`, against the engine in a process.

    python tests/benchmarks/http_speed.py [--clients 16] [--tokens 64]
    python tests/benchmarks/http_speed.py --url http://127.0.0.1:8000 --model NAME

Each client asks again as soon as it was answered. Prompts are random tokens, so no prefix is ever
hit; answers are greedy and do not end by themselves. Tokens that a busy front end finds together,
or that make one character, come in one event, before which there is the time of as many steps:
"events" is the share of the tokens that had one each. The sides take turns in one run. With `--url`
only that server is measured, which may be any that speaks OpenAI's completions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from attrs import asdict, define, field, frozen
from rich.console import Console
from rich.table import Table

from tokenspeed_core import LocalEngine, compose

SERVER, ENGINE = "over HTTP", "in process"
PROMPT_TOKENS, VOCABULARY = 64, 40_000
THROUGHPUT_AT_LEAST, P99_AT_MOST = 0.85, 2.0


@frozen(kw_only=True)
class Load:
    """So many clients, each with so many requests of so many new tokens."""

    clients: int
    requests: int
    tokens: int
    model: str

    @property
    def asked(self) -> int:
        """Tokens of a turn."""
        return self.clients * self.requests * self.tokens

    def prompts(self, client: int) -> Iterator[list[int]]:
        """Fresh prompts of one client."""
        dice = random.Random(os.urandom(8) + bytes([client]))
        for _ in range(self.requests):
            yield [dice.randrange(1000, VOCABULARY) for _ in range(PROMPT_TOKENS)]


@define
class Seen:
    """What clients saw, of the tokens they had asked for; times in seconds."""

    asked: int = 0
    tokens: int = 0
    wall_s: float = 0.0
    first_s: list[float] = field(factory=list)
    gaps_s: list[float] = field(factory=list)

    def add(self, other: Seen) -> None:
        """Take another turn in."""
        self.asked += other.asked
        self.tokens += other.tokens
        self.wall_s += other.wall_s
        self.first_s += other.first_s
        self.gaps_s += other.gaps_s

    def arrived(self, at: float, *, begun: float, last: float | None) -> float:
        """Note a token's arrival; the first one's is measured from the request."""
        if last is None:
            self.first_s.append(at - begun)
        else:
            self.gaps_s.append(at - last)
        self.tokens += 1
        return at


@frozen
class Report:
    """One side: tokens a second, time to the first token, time between two tokens, and the share
    of tokens that had an event of their own."""

    name: str
    tokens_s: float
    first_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    events: float

    @classmethod
    def of(cls, name: str, seen: Seen) -> Report:
        """Medians and the 99th percentile of what was seen."""
        percentiles = statistics.quantiles(seen.gaps_s, n=100)
        return cls(
            name,
            seen.tokens / seen.wall_s,
            1e3 * statistics.median(seen.first_s),
            1e3 * percentiles[49],
            1e3 * percentiles[98],
            seen.tokens / seen.asked,
        )


# --- over HTTP -----------------------------------------------------------------------------------


async def over_http(url: str, load: Load) -> Seen:
    """One turn of every client."""
    seen, begun = Seen(load.asked), perf_counter()
    await asyncio.gather(*(_client(url, load, seen=seen, at=at) for at in range(load.clients)))
    seen.wall_s = perf_counter() - begun
    return seen


async def _client(url: str, load: Load, *, seen: Seen, at: int) -> None:
    parts = urlsplit(url)
    for prompt in load.prompts(at):
        body = {
            "model": load.model,
            "prompt": prompt,
            "max_tokens": load.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
            f"Authorization: Bearer {os.environ.get('OPENAI_API_KEY', '-')}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        begun, last = perf_counter(), None
        writer.write(head.encode() + content)
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{url}: {status.decode()}{(await reader.read()).decode()}")
        async for line in reader:
            if line.startswith(b"data: {"):
                last = seen.arrived(perf_counter(), begun=begun, last=last)
        writer.close()


@contextmanager
def served(load: Load) -> Iterator[str]:
    """`tokenspeed serve` on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tokenspeed_core", "serve", load.model, "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            if not any("ready" in line for line in process.stderr):
                raise SystemExit("the server ended before it was ready")
            yield url
        finally:
            process.terminate()


# --- in process ----------------------------------------------------------------------------------


async def in_process(engine: LocalEngine, load: Load) -> Seen:
    """One turn of every client, as tasks beside the engine's thread."""
    seen, begun = Seen(load.asked), perf_counter()

    async def client(at: int) -> None:
        for prompt in load.prompts(at):
            begun, last = perf_counter(), None
            wishes = {"max_new_tokens": load.tokens, "temperature": 0.0, "ignore_eos": True}
            async for _ in engine.astream(prompt, **wishes):
                last = seen.arrived(perf_counter(), begun=begun, last=last)

    await asyncio.gather(*(client(at) for at in range(load.clients)))
    seen.wall_s = perf_counter() - begun
    return seen


def run_engine(load: Load) -> None:
    """Be the process of the engine: a turn for each line, what it saw as the answer."""
    with compose(load.model) as engine:
        for _ in sys.stdin:
            seen = asyncio.run(in_process(engine, load))
            sys.stdout.write(json.dumps(asdict(seen)) + "\n")
            sys.stdout.flush()


@contextmanager
def engine_process(given: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """The engine in a process of its own."""
    command = [sys.executable, __file__, "--engine", "--model", given.model]
    for name in ("clients", "requests", "tokens"):
        command += [f"--{name}", str(getattr(given, name))]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process


def _turn(process: subprocess.Popen[str]) -> Seen:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return Seen(**json.loads(process.stdout.readline()))


# --- both ----------------------------------------------------------------------------------------


def measure(given: argparse.Namespace, load: Load) -> list[Report]:
    """Turns of each side, or of the one server; the first turn warms up."""
    if given.url is not None:
        asyncio.run(over_http(given.url, load))
        return [Report.of(given.url, asyncio.run(over_http(given.url, load)))]
    server, engine = Seen(), Seen()
    with served(load) as url, engine_process(given) as process:
        for turn in range(given.turns + 1):
            http, local = asyncio.run(over_http(url, load)), _turn(process)
            if turn:
                server.add(http)
                engine.add(local)
    return [Report.of(ENGINE, engine), Report.of(SERVER, server)]


def main() -> None:
    """Print each side, and fail where HTTP costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="measure this server only")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=1, help="of each client in a turn")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    load = Load(
        clients=given.clients, requests=given.requests, tokens=given.tokens, model=given.model
    )
    if given.engine:
        run_engine(load)
        return
    reports = measure(given, load)
    failures = _failures(reports)
    if given.json:
        print(json.dumps({"sides": [asdict(each) for each in reports], "failures": failures}))
    else:
        _show(reports, failures)
    sys.exit(1 if failures else 0)


def _failures(reports: list[Report]) -> list[str]:
    if len(reports) == 1:
        return []
    engine, server = reports
    found = []
    if (share := server.tokens_s / engine.tokens_s) < THROUGHPUT_AT_LEAST:
        found.append(f"{share:.2f} of the throughput in process, at least {THROUGHPUT_AT_LEAST}")
    if (spread := server.gap_p99_ms / server.gap_p50_ms) > P99_AT_MOST:
        found.append(f"p99 between tokens is {spread:.1f} times the median, at most {P99_AT_MOST}")
    return found


def _show(reports: list[Report], failures: list[str]) -> None:
    numbers = ("first token, ms", "between, ms", "p99, ms", "of in process", "events")
    table = Table("side", "tokens/s", *numbers)
    first: Any = reports[0]
    for each in reports:
        times = (each.first_ms, each.gap_p50_ms, each.gap_p99_ms)
        shown = [f"{number:.1f}" for number in times]
        table.add_row(
            each.name,
            f"{each.tokens_s:.0f}",
            *shown,
            f"{each.tokens_s / first.tokens_s:.2f}",
            f"{each.events:.1%}",
        )
    console = Console()
    console.print(table)
    for failure in failures:
        console.print(f"too slow: {failure}")


if __name__ == "__main__":
    main()
