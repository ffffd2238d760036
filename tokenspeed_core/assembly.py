# SPDX-License-Identifier: MIT
"""The library's face: an engine from a model, chosen plugins and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.selection import Chosen
from tokenspeed_core.config import EngineConfig, from_tables
from tokenspeed_core.config.engine_config import LISTS, SECTIONS
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.engine import LocalEngine
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.frontends.in_process import InProcessFrontend
from tokenspeed_core.models.progress import Progress, Silent
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.models.tokenizer import Tokenizer


def compose(
    model: str | None = None,
    *,
    plugins: Sequence[Chosen] = (),
    config: EngineConfig | None = None,
    progress: Progress | None = None,
    **options: Any,  # what a configuration file may hold, by name
) -> LocalEngine:
    """Compose an engine; start it by `with` or `start`.

    `plugins` are names of installed ones, or classes or instances of `Plugin` defined anywhere.
    `options` are those of `[engine]` and `[scheduler]`, the lists `without` and `optional`, and a
    mapping for each plugin's own table. CompositionError, ConfigError and ModelError say what is
    wrong before anything runs.
    """
    if model is not None:
        options["model"] = model
    chosen = with_options(config or EngineConfig(), options)
    frontend = InProcessFrontend()
    tokenizer = _tokenizer(chosen, progress or Silent())
    around = Surroundings(
        frontend=frontend,
        decode_text=tokenizer.decode if tokenizer is not None else None,
        tokenizer=tokenizer,
    )
    rank = build_rank(chosen, plugins, surroundings=around)
    return LocalEngine(rank, frontend, tokenizer=tokenizer)


def with_options(config: EngineConfig, options: Mapping[str, Any]) -> EngineConfig:
    """The configuration with some options changed by name; ConfigError lists what is wrong."""
    owners = {field.name: name for name, cls in SECTIONS.items() for field in attrs.fields(cls)}
    tables = config.as_tables()
    problems = []
    for name, value in options.items():
        if name in owners:
            tables[owners[name]][name] = value
        elif name in LISTS or isinstance(value, Mapping):
            tables[name] = value
        else:
            problems.append(unknown("option", name, known=[*owners, *LISTS]))
    if problems:
        raise ConfigError(problems)
    return from_tables(tables)


def _tokenizer(config: EngineConfig, progress: Progress) -> Tokenizer | None:
    """The model's tokenizer; a scripted data plane and a model given as an object have none."""
    if config.engine.data_plane == "scripted" or "model" in config.data_plane:
        return None
    return resolve_model(config.engine.model, progress).load_tokenizer()
