# SPDX-License-Identifier: MIT
"""A workplace outside the checkout for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed_core.testing.workplace import Workplace, make_workplace


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """An empty folder and environment."""
    return make_workplace(tmp_path)
