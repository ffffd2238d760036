# SPDX-License-Identifier: MIT
"""The plugins that a command tries: named as installed, with their options and sample features."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed_core.composition.built_in import built_in
from tokenspeed_core.composition.discovery import InstalledPlugin, installed
from tokenspeed_core.config.engine_config import load
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.errors import ConfigError

if TYPE_CHECKING:
    from tokenspeed_core.testing.conformance.subject import Features


def add_trial_flags(parser: argparse.ArgumentParser) -> None:
    """Add what is said of plugins besides their own flags."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a TOML file with their tables; flags win"
    )
    parser.add_argument(
        "--feature",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="send requests with this feature too; VALUE is JSON, or a text; may be repeated",
    )


def sources_of(names: Sequence[str]) -> list[InstalledPlugin]:
    """The installed plugins of these names; ConfigError for one that is not installed."""
    known = {**installed().plugins, **built_in()}
    wrong = [unknown("plugin", name, known=known) for name in names if name not in known]
    if wrong:
        raise ConfigError(wrong)
    return [known[name] for name in names]


def options_of(plugin: str, given: argparse.Namespace) -> dict[str, Any]:
    """A plugin's options: of the file, and then of its flags."""
    tables = {} if given.config is None else load(given.config).tables
    prefix, flags = f"{plugin}.", vars(given)
    own = {key.removeprefix(prefix): flags[key] for key in flags if key.startswith(prefix)}
    return {**tables.get(plugin, {}), **own}


def features_of(given: argparse.Namespace) -> list[Features]:
    """The features that `--feature` names; ConfigError for one that is no pair."""
    features: list[Mapping[str, object]] = []
    for text in given.feature:
        name, is_pair, value = text.partition("=")
        if not is_pair or not name:
            raise ConfigError([f"--feature: expected NAME=VALUE, got {text!r}"])
        features.append({name: _value(value)})
    return features


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
