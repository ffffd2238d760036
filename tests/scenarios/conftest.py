# SPDX-License-Identifier: MIT
"""Coroutine tests run on asyncio."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that marked tests and fixtures run on."""
    return "asyncio"
