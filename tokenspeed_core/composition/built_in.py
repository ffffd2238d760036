# SPDX-License-Identifier: MIT
"""The plugins that come with the engine; they are loaded like any other."""

from __future__ import annotations

from importlib.metadata import EntryPoint, version

from tokenspeed_core.composition.discovery import PLUGINS, InstalledPlugin

OURS = "tokenspeed-core"
BUILT_IN = {
    "batch_log": "tokenspeed_core.observers.batch_log:BatchLog",
    "finish_line": "tokenspeed_core.observers.finish_line:FinishLine",
}
ON_REQUEST = {"trace": "tokenspeed_core.trace.round_trace:RoundTrace"}


def built_in() -> dict[str, InstalledPlugin]:
    """Return the built-in plugins as if their entry points were installed; those of `BUILT_IN` are
    loaded unless they are left out, those of `ON_REQUEST` only where they are named."""
    ours = version(OURS)
    return {
        name: InstalledPlugin(name, value, OURS, ours, (), EntryPoint(name, value, PLUGINS))
        for name, value in (BUILT_IN | ON_REQUEST).items()
    }
