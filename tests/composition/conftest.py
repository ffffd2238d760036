# SPDX-License-Identifier: MIT
"""A place to install plugins, and ranks without a device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.composition.selection import Chosen
from tokenspeed_core.config import EngineConfig, EngineSection
from tokenspeed_core.testing import ManualFrontend
from tokenspeed_core.testing.site import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty place for distributions; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith("other_"):
            del sys.modules[name]


@pytest.fixture
def compose() -> Iterator[Callable[..., Rank]]:
    """Build a rank with a scripted plane from plugins and the fields of its configuration."""
    built: list[Rank] = []

    def make(*plugins: Chosen, frontend: ManualFrontend | None = None, **config: Any) -> Rank:
        config.setdefault("engine", EngineSection(data_plane="scripted"))
        around = Surroundings(frontend=frontend or ManualFrontend())
        built.append(build_rank(EngineConfig(**config), plugins, surroundings=around))
        return built[-1]

    yield make
    for rank in built:
        rank.data_plane.stop()
