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
from tokenspeed_core.model_tokenizer import model_tokenizer
from tokenspeed_core.models.progress import Progress


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
    tokenizer = model_tokenizer(chosen, progress)
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
