# SPDX-License-Identifier: MIT
"""An engine's side of the wire without an engine: the test is the loop."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import evolve

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
