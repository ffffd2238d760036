# SPDX-License-Identifier: MIT
"""An engine's side of the wire: without an engine, where the test is the loop, and with one."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import evolve

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.serving.engine_info import engine_info
from tokenspeed_core.testing.engine import EngineSetup
from tokenspeed_core.wire.frontend import ZmqFrontend
from tokenspeed_core.wire.handshake import ParallelSizes
from tokenspeed_core.wire.settings import WireSettings
from tokenspeed_hookspecs import EngineInfo

Dial = Callable[..., ZmqFrontend]
SETTINGS = WireSettings(retry_s=0.01)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ts") as path:
        yield Path(path)


@pytest.fixture
def info() -> EngineInfo:
    """What the engine says of itself."""
    return EngineInfo(
        index=0,
        model="tiny",
        max_model_len=4096,
        vocab_size=100,
        page_size=16,
        num_pages=64,
        dtype="float32",
        version="tokenspeed-1",
    )


@pytest.fixture
def dial(folder: Path, info: EngineInfo) -> Iterator[Dial]:
    """Make frontends that dial the folder's handshake address; closed after the test."""
    with ExitStack() as closing:

        def _dial(settings: WireSettings = SETTINGS, index: int = 0) -> ZmqFrontend:
            frontend = ZmqFrontend(f"ipc://{folder}/h", settings=settings)
            frontend.start(evolve(info, index=index), ParallelSizes())
            closing.callback(frontend.close)
            return frontend

        yield _dial


@pytest.fixture(params=[0, 1], ids=["depth 0", "depth 1"])
def rank(request: pytest.FixtureRequest, folder: Path) -> Iterator[Rank]:
    """A rank with a scripted data plane whose loop runs on a thread and serves over the wire."""
    frontend = ZmqFrontend(f"ipc://{folder}/h", settings=SETTINGS)
    setup = EngineSetup(depth=request.param, plane={"forward_ms": 1.0, "checked_pages": False})
    rank = build_rank(setup.config(), surroundings=Surroundings(frontend=frontend))
    rank.start()
    frontend.start(engine_info(rank, index=0))
    loop = threading.Thread(target=rank.loop.run, args=(lambda: False,))
    loop.start()
    yield rank
    frontend.stop()
    loop.join()
    frontend.close()
    rank.stop()
