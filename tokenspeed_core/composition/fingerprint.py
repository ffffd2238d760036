# SPDX-License-Identifier: MIT
"""What must be the same on every rank before the first round, as one digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attrs

from tokenspeed_core.composition.plugin_class import LoadedPlugin
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.errors import CompositionError
from tokenspeed_hookspecs import API_VERSION, DataPlane, Ranks

SCHEDULER = "tokenspeed-scheduler"
OF_ONE_RANK = frozenset({"device", "threads"})


def fingerprint(
    config: EngineConfig, members: Sequence[LoadedPlugin], *, data_plane: DataPlane
) -> str:
    """Return the SHA-256 over plugins in order, their options, versions, model and settings."""
    engine = attrs.asdict(config.engine, filter=lambda field, _: field.name not in OF_ONE_RANK)
    facts = {
        "api": API_VERSION,
        "scheduler_version": _version(SCHEDULER),
        "plugins": [[each.name, each.version, each.options_table()] for each in members],
        "engine": engine,
        "scheduler": attrs.asdict(config.scheduler),
        "model": attrs.asdict(data_plane.model),
        "cache_groups": [attrs.asdict(group) for group in data_plane.cache_groups],
    }
    text = json.dumps(facts, sort_keys=True, default=_named)
    return hashlib.sha256(text.encode()).hexdigest()


def agree(digest: str, ranks: Ranks) -> None:
    """Compare the digest with every rank of the group; CompositionError names who differs."""
    group = ranks.dp or ranks.replica
    digests = [each.decode() for each in group.gather(digest.encode())]
    different = [member for member, each in enumerate(digests) if each != digests[0]]
    if different:
        text = f"members {different} of {group.size} are composed differently from member 0"
        raise CompositionError([f"{text}; compare what `tokenspeed plugins --json` says on each"])


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _named(value: Any) -> str:
    """An option of a kind of its own counts by its type; its address would differ by process."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
