# SPDX-License-Identifier: MIT
"""The suite that every plugin passes, with the store in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tokenspeed_core.testing import PluginContract
from tokenspeed_l3.plugin import L3


class TestConformance(PluginContract):
    """With pages that even short prompts ask for."""

    plugin = L3
    options: ClassVar[Mapping[str, Any]] = {"store": "memory", "min_prefetch_tokens": 1}
