# SPDX-License-Identifier: MIT
"""Configuration: one record, one TOML file, the same names as flags."""

from __future__ import annotations

from tokenspeed_core.config.engine_config import EngineConfig, from_tables, load
from tokenspeed_core.config.flags import add_flags, add_table_flags, from_flags, reject_unknown
from tokenspeed_core.config.sections import EngineSection, SchedulerSection

__all__ = [
    "EngineConfig",
    "EngineSection",
    "SchedulerSection",
    "add_flags",
    "add_table_flags",
    "from_flags",
    "from_tables",
    "load",
    "reject_unknown",
]
