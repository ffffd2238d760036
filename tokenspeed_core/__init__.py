# SPDX-License-Identifier: MIT
"""tokenspeed-core: an LLM inference engine that people compose from plugins.

from tokenspeed_core import compose

with compose("smollm2-135m") as engine:
    print(engine.generate("The capital of France is", max_new_tokens=8, temperature=0).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed_core.assembly import compose
    from tokenspeed_core.completion import Completion, Usage
    from tokenspeed_core.config import EngineConfig
    from tokenspeed_core.engine import LocalEngine
    from tokenspeed_core.errors import CompositionError, ConfigError, EngineError, PluginError
    from tokenspeed_core.models.errors import ModelError
    from tokenspeed_hookspecs import LogprobOptions, Plugin, SamplingParams, hookimpl

_HOMES = {
    "Completion": "tokenspeed_core.completion",
    "CompositionError": "tokenspeed_core.errors",
    "ConfigError": "tokenspeed_core.errors",
    "EngineConfig": "tokenspeed_core.config",
    "EngineError": "tokenspeed_core.errors",
    "LocalEngine": "tokenspeed_core.engine",
    "LogprobOptions": "tokenspeed_hookspecs",
    "ModelError": "tokenspeed_core.models.errors",
    "Plugin": "tokenspeed_hookspecs",
    "PluginError": "tokenspeed_core.errors",
    "SamplingParams": "tokenspeed_hookspecs",
    "Usage": "tokenspeed_core.completion",
    "compose": "tokenspeed_core.assembly",
    "hookimpl": "tokenspeed_hookspecs",
}

__all__ = [
    "Completion",
    "CompositionError",
    "ConfigError",
    "EngineConfig",
    "EngineError",
    "LocalEngine",
    "LogprobOptions",
    "ModelError",
    "Plugin",
    "PluginError",
    "SamplingParams",
    "Usage",
    "compose",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    """Load a name from its home when it is first asked for: commands start before torch does."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
