# SPDX-License-Identifier: MIT
"""Engines on the scripted plane, which gives every request the tokens 1000, 1001, ..."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tokenspeed_core import EngineConfig, LocalEngine, compose

StartEngine = Callable[..., LocalEngine]


@pytest.fixture
def start() -> Iterator[StartEngine]:
    """Compose and start scripted engines by `compose`'s options; they are stopped at the end."""
    with ExitStack() as stack:

        def start(**options: object) -> LocalEngine:
            # A forward takes a little, so that a request can be met while it runs.
            config = EngineConfig(data_plane={"forward_ms": 1.0})
            usual = {"data_plane": "scripted", "page_size": 16, "config": config}
            engine = compose(**{**usual, **options})  # type: ignore[arg-type]  # options by name
            return stack.enter_context(engine)

        yield start
