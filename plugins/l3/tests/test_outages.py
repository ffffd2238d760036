# SPDX-License-Identifier: MIT
"""A model that serves while its store fails: every token is right, and the tier is taken back."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve

from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_hookspecs import AddRequest
from tokenspeed_l3.executor import Executor
from tokenspeed_l3.health import HealthState
from tokenspeed_l3.jobs import PUT
from tokenspeed_l3.plugin import L3

LIMIT_S = 100.0
NOBODY = 65534
MODEL = tiny_model()


@define
class Place:
    """Where the store is, and how to break and mend it."""

    store: str
    begin: Callable[[], object]
    end: Callable[[], object]
    is_full: bool = False


@pytest.fixture
def killed(redis: Any) -> Place:
    """Redis is killed, and begun anew with nothing in it."""
    return Place(f"redis:{redis.path}", lambda: redis.send(signal.SIGKILL), redis.start)


@pytest.fixture
def hung(redis: Any) -> Place:
    """Redis stands still, and goes on with what it had."""
    return Place(
        f"redis:{redis.path}?timeout=200ms",
        lambda: redis.send(signal.SIGSTOP),
        lambda: redis.send(signal.SIGCONT),
    )


@pytest.fixture
def unmounted(tmp_path: Path) -> Place:
    """The directory goes, and returns."""
    root, aside = tmp_path / "store", tmp_path / "aside"
    return Place(f"file:{root}", lambda: shutil.move(root, aside), lambda: shutil.move(aside, root))


@pytest.fixture
def denied(tmp_path: Path) -> Iterator[Place]:
    """The directory may not be entered any more, and may again."""
    user = os.geteuid()

    def begin() -> None:
        tmp_path.chmod(0)
        if not user:
            os.seteuid(NOBODY)

    def end() -> None:
        os.seteuid(user)
        tmp_path.chmod(0o700)

    yield Place(f"file:{tmp_path / 'store'}", begin, end)
    end()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Place]:
    """A disk of 4 MiB of which others take the rest, and give it back."""
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    other = tmp_path / "other"

    def begin() -> None:
        with contextlib.suppress(OSError), other.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    yield Place(f"file:{tmp_path / 'store'}?min_free=0", begin, other.unlink, is_full=True)
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=False)


@pytest.fixture
def fixtures(request: pytest.FixtureRequest) -> pytest.FixtureRequest:
    """The fixtures by name."""
    return request


@pytest.fixture(scope="module")
def plain() -> Iterator[TorchEngine]:
    """The model without any tier."""
    with TorchEngine(TorchSetup(model=MODEL, scheduler={"prefix_cache": False})) as engine:
        yield engine


def tiered(store: str) -> TorchEngine:
    """The model on a store, of which it soon thinks well and ill."""
    options = {
        "store": store,
        "min_prefetch_tokens": 1,
        "wait_timeout_s": 60.0,
        "failure_threshold": 2,
        "recovery_interval_s": 0.1,
    }
    setup = TorchSetup(
        model=MODEL, scheduler={"host_pages": 64}, plugins=("l3",), tables={"l3": options}
    )
    return TorchEngine(setup)


@define
class Asking:
    """Asks prompts that nobody asked before, and compares with what the plain engine says."""

    engine: TorchEngine
    plain: TorchEngine
    number: int = 0

    @property
    def executor(self) -> Executor:
        """The plugin's."""
        (found,) = (each.instance for each in self.engine.rank.plugins if each.name == "l3")
        assert isinstance(found, L3)
        assert found.executor is not None
        return found.executor

    @property
    def num_put(self) -> int:
        """Objects that the store took."""
        return self.executor.figures.hits[PUT]

    def ask(self) -> AddRequest:
        """Ask the next prompt, and return it."""
        self.number += 1
        prompt = [(7 * at + 13 * self.number) % 290 for at in range(60 + self.number % 30)]
        asked = request(f"r{self.number}", prompt, budget=5, temperature=0.0)
        (expected,) = self.plain.generate([evolve(asked, request_id=f"{id(self)}-{self.number}")])
        (found,) = self.engine.generate([asked])
        assert found.tokens == expected.tokens
        return asked

    def until(self, condition: Callable[[], object]) -> None:
        """Ask on until it holds."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, self.executor.health
            self.ask()

    def settle(self) -> None:
        """Let what is under way end."""
        quiet, rank, end = 0, self.engine.rank, time.monotonic() + LIMIT_S
        while quiet < 5:
            rank.loop.round()
            is_busy = rank.scheduler.storage_pending or rank.loop.ledger.num_open
            quiet = 0 if is_busy else quiet + 1
            assert time.monotonic() < end, "operations of the store never end"


@pytest.mark.parametrize("outage", ["killed", "hung", "unmounted", "denied", "full"])
def test_an_engine_serves_on_without_its_store_and_takes_it_back(
    outage: str, plain: TorchEngine, fixtures: pytest.FixtureRequest
) -> None:
    """While it is away it is left alone; afterwards pages are stored, and found by another engine.

    A full disk is no failure: nothing is stored and all else goes on.
    """
    place: Place = fixtures.getfixturevalue(outage)
    with tiered(place.store) as engine:
        asking = Asking(engine, plain)
        asking.until(lambda: asking.num_put)
        asking.settle()
        place.begin()
        if place.is_full:
            asking.until(lambda: asking.executor.store_counts["no_space"])
            assert asking.executor.health is HealthState.CLOSED
        else:
            asking.until(lambda: asking.executor.health is HealthState.OPEN)
        asking.ask()
        place.end()
        stored = asking.num_put
        asking.until(lambda: asking.num_put > stored)
        last = asking.ask()
        asking.settle()
        assert asking.executor.health is HealthState.CLOSED
    with tiered(place.store) as again:
        (stream,) = again.generate([last])
    details = stream.chunks[-1].details
    assert details is not None
    assert (details.cached_by_tier or {})["storage"] >= 48
