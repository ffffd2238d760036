# SPDX-License-Identifier: MIT
"""The kit for tests of the engine and of plugins: real small objects, no mocks."""

from __future__ import annotations

from tokenspeed_core.testing.batches import DecodeRow, ExtendRow, batch_of, plan_of
from tokenspeed_core.testing.checked_pages import CheckedPages
from tokenspeed_core.testing.conformance.contract import PluginContract
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_core.testing.engine import EngineFixture, EngineSetup, Tiers, scripted_engine
from tokenspeed_core.testing.invariants import Counters, check_idle, check_round, check_streams
from tokenspeed_core.testing.messages import request, telling_tokens
from tokenspeed_core.testing.scripted_frontend import ManualFrontend, ScriptedFrontend
from tokenspeed_core.testing.scripted_options import Faults, RowFault, ScriptedOptions
from tokenspeed_core.testing.scripted_plane import ScriptedDataPlane
from tokenspeed_core.testing.served_engine import Served, ServedEngine, served_engines
from tokenspeed_core.testing.streams import Chunk, Received, Stream
from tokenspeed_core.testing.wire_engine import WireEngine, wire_engines
from tokenspeed_core.testing.world import WorldFixture, thread_meshes

__all__ = [
    "CheckedPages",
    "Chunk",
    "Counters",
    "DecodeRow",
    "EngineFixture",
    "EngineSetup",
    "ExtendRow",
    "Faults",
    "ManualFrontend",
    "PluginContract",
    "Received",
    "RowFault",
    "ScriptedDataPlane",
    "ScriptedFrontend",
    "ScriptedOptions",
    "Served",
    "ServedEngine",
    "Stream",
    "Subject",
    "Tiers",
    "WireEngine",
    "WorldFixture",
    "batch_of",
    "check_idle",
    "check_round",
    "check_streams",
    "plan_of",
    "request",
    "scripted_engine",
    "served_engines",
    "telling_tokens",
    "thread_meshes",
    "wire_engines",
]
