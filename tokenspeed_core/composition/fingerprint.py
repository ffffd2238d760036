# SPDX-License-Identifier: MIT
"""What must be the same on every rank before the first round."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attrs

from tokenspeed_core.composition.plugin_class import LoadedPlugin
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.errors import CompositionError
from tokenspeed_hookspecs import API_VERSION, DataPlane, Ranks

SCHEDULER = "tokenspeed-scheduler"
OF_ONE_RANK = frozenset({"device", "threads", "record"})


Facts = dict[str, Any]


def facts_of(
    config: EngineConfig, members: Sequence[LoadedPlugin], *, data_plane: DataPlane
) -> Facts:
    """Return what must be equal: plugins in order, their options, versions, model and settings."""
    engine = attrs.asdict(config.engine, filter=lambda field, _: field.name not in OF_ONE_RANK)
    facts = {
        "api": API_VERSION,
        "scheduler_version": _version(SCHEDULER),
        "plugins": [each.name for each in members],
        "versions": {each.name: each.version for each in members},
        "options": {each.name: each.options_table() for each in members},
        "engine": engine,
        "scheduler": attrs.asdict(config.scheduler),
        "model": attrs.asdict(data_plane.model),
        "cache_groups": [attrs.asdict(group) for group in data_plane.cache_groups],
    }
    plain: Facts = json.loads(_text(facts))
    return plain


def fingerprint(facts: Facts) -> str:
    """Return the SHA-256 of the facts."""
    return hashlib.sha256(_text(facts).encode()).hexdigest()


def agree(facts: Facts, ranks: Ranks) -> None:
    """Compare the facts with every rank's; CompositionError says who differs from member 0 in what.

    Both sides of a difference are shown.
    """
    group = ranks.dp or ranks.replica
    told = [json.loads(each) for each in group.gather(_text(facts).encode())]
    problems = []
    for member, theirs in enumerate(told):
        for name in sorted({*theirs, *told[0]}):
            problems += [
                f"{place}: {here!r} on member 0, {there!r} on member {member}"
                for place, here, there in _differences(
                    name, here=told[0].get(name), there=theirs.get(name)
                )
            ]
    if problems:
        raise CompositionError(problems)


def _differences(place: str, *, here: Any, there: Any) -> Iterator[tuple[str, Any, Any]]:
    """The innermost places where two values differ."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in sorted({*here, *there}):
            inner = f"{place}.{key}"
            yield from _differences(inner, here=here.get(key), there=there.get(key))
    elif here != there:
        yield place, here, there


def _text(facts: Facts) -> str:
    return json.dumps(facts, sort_keys=True, default=_named)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _named(value: Any) -> str:
    """An option of a kind of its own counts by its type; its address would differ by process."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
