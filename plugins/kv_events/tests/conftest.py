# SPDX-License-Identifier: MIT
"""Readers that know the format and nothing else of the engine, and an engine they can follow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import zmq
from attrs import define, evolve, field

from tokenspeed_core.testing import EngineFixture, EngineSetup
from tokenspeed_kv_events.plugin import KvEvents

END = b"\xff" * 8
WAIT_MS = 60_000


@define
class Mirror:
    """A prefix index made of decoded events in array form, as a router keeps one."""

    blocks: dict[int, tuple[int | None, tuple[int, ...]]] = field(factory=dict)

    def take(self, events: Iterable[Sequence[Any]]) -> None:
        for event in events:
            tag, *fields = event
            if tag == "AllBlocksCleared":
                self.blocks.clear()
            elif tag == "BlockRemoved":
                for name in fields[0]:
                    self.blocks.pop(name, None)
            else:
                (name,), parent, tokens, _ = fields[:4]
                self.blocks[name] = (parent, tuple(tokens))

    def cached(self, prompt: Sequence[int]) -> int:
        """How many tokens of the prompt's start are cached, up to the end of a block."""
        found, parent = 0, None
        while True:
            fitting = [
                (len(tokens), name)
                for name, (above, tokens) in self.blocks.items()
                if above == parent and tuple(prompt[found : found + len(tokens)]) == tokens
            ]
            if not fitting:
                return found
            size, parent = max(fitting)
            found += size


@define
class Reader:
    """One that subscribes, and can ask for what it missed."""

    sub: zmq.Socket[bytes]
    dealer: zmq.Socket[bytes]

    def receive(self, count: int = 1) -> list[tuple[int, Any]]:
        """The next batches with their numbers; AssertionError if they do not come."""
        found: list[tuple[int, Any]] = []
        for _ in range(count):
            assert self.sub.poll(WAIT_MS), f"only {len(found)} of {count} batches came"
            _, number, payload = self.sub.recv_multipart()
            found.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
        return found

    def replay(self, start: int) -> list[tuple[int, Any]]:
        """What the engine kept from a number on."""
        self.dealer.send_multipart([b"", start.to_bytes(8, "big")])
        found: list[tuple[int, Any]] = []
        while self.dealer.poll(WAIT_MS):
            _, number, payload = self.dealer.recv_multipart()
            if number == END:
                return found
            found.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
        raise AssertionError(f"the replay has no end after {len(found)} batches")


@define
class Site:
    """Makes engines that publish inside this process, and readers of them."""

    name: str
    context: zmq.Context[zmq.Socket[bytes]] = field(factory=zmq.Context.instance)
    engines: list[EngineFixture] = field(factory=list)
    sockets: list[zmq.Socket[bytes]] = field(factory=list)

    @property
    def addresses(self) -> dict[str, str]:
        return {"endpoint": f"inproc://{self.name}", "replay_endpoint": f"inproc://{self.name}-r"}

    def engine(self, setup: EngineSetup | None = None, **options: Any) -> EngineFixture:
        """An engine with the plugin and these options."""
        table = {"kv_events": {**self.addresses, **options}}
        setup = setup or EngineSetup()
        setup = evolve(setup, plugins=(*setup.plugins, KvEvents), tables=table)
        self.engines.append(EngineFixture(setup))
        return self.engines[-1]

    def reader(self, suffix: str = "") -> Reader:
        """A reader that misses nothing from now on."""
        sub, dealer = self.context.socket(zmq.SUB), self.context.socket(zmq.DEALER)
        self.sockets += [sub, dealer]
        sub.rcvhwm = dealer.rcvhwm = 0
        sub.subscribe(b"")
        sub.connect(self.addresses["endpoint"] + suffix)
        dealer.connect(self.addresses["replay_endpoint"] + suffix)
        return Reader(sub, dealer)

    def close(self) -> None:
        for engine in self.engines:
            engine.rank.stop()
        for socket in self.sockets:
            socket.close(0)
        self.engines.clear()
        self.sockets.clear()


@pytest.fixture(scope="session")
def names() -> Callable[[], str]:
    """A new address for each test."""
    numbers = itertools.count()
    return lambda: f"kv-events-{next(numbers)}"


@pytest.fixture
def site(names: Callable[[], str]) -> Iterator[Site]:
    """A place for engines and readers, closed afterwards."""
    site = Site(names())
    yield site
    site.close()


@pytest.fixture
def mirror() -> Mirror:
    """An empty mirror."""
    return Mirror()
