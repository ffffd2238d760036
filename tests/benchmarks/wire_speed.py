# SPDX-License-Identifier: MIT
"""What the wire costs: an engine's process over ipc, against the same engine in this process.

    python tests/benchmarks/wire_speed.py [--json] [--requests 1400] [--tokens 300]

The device does no work, so what is left is the way there and back. A round trip is a request for
one token, from `generate` to the end of its stream; streaming is 16 requests at once, by the token.
Both sides take turns in one run, through the same asyncio interface. For scale, and for how fast
the machine is just then: ZMQ alone, a message of the same size there and back between two processes
and their threads, with nothing around it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from time import perf_counter

import zmq
import zmq.asyncio
from attrs import asdict, frozen
from rich.console import Console
from rich.table import Table

from tokenspeed_core.client import ClientConfig, EngineClient, private_addresses
from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.engine import LocalEngine
from tokenspeed_core.frontends.in_process import InProcessFrontend
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_core.serving.engine_info import engine_info
from tokenspeed_core.testing import EngineSetup, ScriptedDataPlane, request
from tokenspeed_core.testing.local_client import LocalClient
from tokenspeed_core.wire.codec import encode_message
from tokenspeed_core.wire.frontend import ZmqFrontend
from tokenspeed_hookspecs import EngineClient as Client
from tokenspeed_hookspecs import Frontend

STREAMS, TURNS = 16, 7
ROUND_TRIP, STREAMING = "round trip", "a token of 16 streams"
LIMITS_US = {ROUND_TRIP: 1000.0}
Work = Callable[[Client], Awaitable[list[float]]]


@frozen
class Cost:
    """Microseconds of each side: the median, and over ipc the 99th percentile as well."""

    name: str
    in_process_us: float
    ipc_us: float
    ipc_p99_us: float
    ratio: float


def idle_rank(frontend: Frontend) -> Rank:
    """A rank whose device does nothing."""
    setup = EngineSetup(
        scheduler={"max_batch_size": STREAMS, "num_pages": 4097},
        plane={"checked_pages": False, "recorded_batches": 0},
    )
    around = Surroundings(
        frontend=frontend, make_data_plane=ScriptedDataPlane, make_scheduler=NativeScheduler
    )
    return build_rank(setup.config(), surroundings=around)


def run_engine(address: str) -> None:
    """Be the engine's process, until it is killed."""
    frontend = ZmqFrontend(address)
    rank = idle_rank(frontend)
    rank.start()
    frontend.start(engine_info(rank, index=0))
    rank.loop.run(lambda: False)


@contextmanager
def other_process(*arguments: str) -> Iterator[None]:
    """Another process of this file, with these arguments."""
    with subprocess.Popen([sys.executable, __file__, *arguments]) as process:
        try:
            yield
        finally:
            process.kill()


@asynccontextmanager
async def over_ipc() -> AsyncIterator[Client]:
    """A client of such an engine."""
    with private_addresses() as addresses:
        async with EngineClient(ClientConfig(addresses=addresses)) as client:
            client.bind()
            with other_process("--engine", addresses.handshake):
                await client.accept()
                yield client


@asynccontextmanager
async def in_process() -> AsyncIterator[Client]:
    """The same interface of an engine on a thread."""
    frontend = InProcessFrontend()
    rank = idle_rank(frontend)
    with LocalEngine(rank, frontend, tokenizer=None):
        yield LocalClient(frontend, engine_info(rank, index=0))


def round_trips(requests: int) -> Work:
    """One request after the other; the time of each."""
    numbers = count()

    async def work(client: Client) -> list[float]:
        times = []
        for _ in range(requests):
            begun = perf_counter()
            stream = await client.generate(request(f"r{next(numbers)}", 5, budget=1))
            async for _ in stream:
                pass
            times.append(perf_counter() - begun)
        return times

    return work


def streaming(tokens: int) -> Work:
    """Sixteen requests at once; the time of all, by the token."""
    numbers = count()

    async def one(client: Client) -> None:
        async for _ in await client.generate(request(f"s{next(numbers)}", 5, budget=tokens)):
            pass

    async def work(client: Client) -> list[float]:
        begun = perf_counter()
        await asyncio.gather(*(one(client) for _ in range(STREAMS)))
        return [(perf_counter() - begun) / tokens / STREAMS]

    return work


def run_echo(address: str) -> None:
    """Be the other end of ZMQ alone, until killed."""
    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.connect(address)
    dealer.send(b"")
    while True:
        dealer.send_multipart(dealer.recv_multipart())


async def bare_zmq(trips: int) -> float:
    """The median of a message's way there and back, in microseconds."""
    payload = encode_message(request("r", 5, budget=1))
    times = []
    async with AsyncExitStack() as stack:
        addresses = stack.enter_context(private_addresses())
        context = stack.enter_context(zmq.asyncio.Context())
        router = stack.enter_context(context.socket(zmq.ROUTER))
        router.linger = 0
        router.bind(addresses.input)
        stack.enter_context(other_process("--echo", addresses.input))
        identity, _ = await router.recv_multipart()
        for _ in range(trips):
            begun = perf_counter()
            await router.send_multipart([identity, *payload])
            await router.recv_multipart()
            times.append(perf_counter() - begun)
    return statistics.median(times) * 1e6


async def measure(requests: int, tokens: int) -> list[Cost]:
    """Both loads, the sides in turn."""
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(in_process())
        remote = await stack.enter_async_context(over_ipc())
        loads = {ROUND_TRIP: round_trips(requests // TURNS), STREAMING: streaming(tokens)}
        return [await compare(name, work, sides=(local, remote)) for name, work in loads.items()]


async def compare(name: str, work: Work, *, sides: tuple[Client, Client]) -> Cost:
    """One load on both sides, after a warm-up of each."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS + 1):
        for found, client in zip(times, sides, strict=True):
            seconds = await work(client)
            if turn:
                found.extend(seconds)
    here, there = (statistics.median(found) * 1e6 for found in times)
    p99 = statistics.quantiles(times[1], n=100)[-1] * 1e6
    return Cost(name, here, there, p99, there / here)


def show(costs: Sequence[Cost], bare_us: float) -> None:
    """Print a table."""
    table = Table(title="the wire, with a device that does no work")
    for column in ("", "in process", "over ipc", "p99", "times as long", "at most"):
        table.add_column(column, justify="right" if column else "left")
    for cost in costs:
        limit = LIMITS_US.get(cost.name)
        style = "green" if limit is None or cost.ipc_us <= limit else "red"
        table.add_row(
            cost.name,
            f"{cost.in_process_us:,.1f} us",
            f"[{style}]{cost.ipc_us:,.1f} us",
            f"{cost.ipc_p99_us:,.1f} us",
            f"{cost.ratio:.2f}",
            f"{limit:,.0f} us" if limit is not None else "",
        )
    table.add_row("bare ZMQ", "", f"{bare_us:,.1f} us")
    Console().print(table)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description="What the wire costs.")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--requests", type=int, default=1400, help="round trips a side")
    parser.add_argument("--tokens", type=int, default=300, help="tokens a stream")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine is not None:
        run_engine(given.engine)
        return
    if given.echo is not None:
        run_echo(given.echo)
    costs = asyncio.run(measure(given.requests, given.tokens))
    bare_us = asyncio.run(bare_zmq(given.requests))
    if given.json:
        print(json.dumps({"name": "bare ZMQ", "ipc_us": bare_us}), flush=True)
        for cost in costs:
            print(json.dumps(asdict(cost)), flush=True)
    else:
        show(costs, bare_us)


if __name__ == "__main__":
    main()
