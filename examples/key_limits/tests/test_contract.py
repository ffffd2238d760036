# SPDX-License-Identifier: MIT
"""What every plugin must do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from acme_key_limits.plugin import KeyLimits
from acme_key_limits.samples import features

from tokenspeed_core.testing import PluginContract

SLOW = {"priority": 9, "per_second": 20.0, "burst": 2, "at_once": 1, "waiting": 4}


class TestContract(PluginContract):
    """The contract, with limits that hold requests back."""

    plugin = KeyLimits
    options: ClassVar[Mapping[str, Any]] = {
        "running": 3,
        "keys": {"gold": {"priority": 0}, "free": SLOW},
    }
    features = features()
