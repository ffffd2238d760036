# SPDX-License-Identifier: MIT
"""A tiny engine on the torch plane, and an extension to watch and change it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tokenspeed_core.testing.tiny_model import TinyModel, tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup

MakeEngine = Callable[..., TorchEngine]


@pytest.fixture(scope="session")
def tiny() -> TinyModel:
    """One tiny model for all tests; nothing changes its weights."""
    return tiny_model()


@pytest.fixture
def start_engine(tiny: TinyModel) -> Iterator[MakeEngine]:
    """Start engines of the tiny model, by TorchSetup's options; they are stopped at the end."""
    with ExitStack() as stack:

        def start(**options: Any) -> TorchEngine:
            # Threads cost a tiny model more than they give.
            usual: dict[str, Any] = {"model": tiny, "engine": {"threads": 1}}
            setup = TorchSetup(**{**usual, **options})
            return stack.enter_context(TorchEngine(setup))

        yield start
