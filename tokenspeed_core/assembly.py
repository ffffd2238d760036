# SPDX-License-Identifier: MIT
"""The library's face: an engine from a model, chosen plugins and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import attrs

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.selection import Chosen, select
from tokenspeed_core.config import EngineConfig, from_tables
from tokenspeed_core.config.engine_config import LISTS, SECTIONS
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.engine import LocalEngine
from tokenspeed_core.errors import CompositionError, ConfigError
from tokenspeed_core.frontends.in_process import InProcessFrontend
from tokenspeed_core.model_tokenizer import model_tokenizer
from tokenspeed_core.models.progress import Progress
from tokenspeed_core.serving.engine_ranks import engine_ranks


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
    wrong before anything runs. With `tp` or `pp` the other ranks' processes are started here; they
    end with the engine, or with this process.
    """
    if model is not None:
        options["model"] = model
    chosen = with_options(config or EngineConfig(), options)
    _check_ranks(chosen, plugins)
    # A wrong name is told before a model is fetched.
    if problems := select(chosen, plugins).problems:
        raise CompositionError(list(problems))
    frontend = InProcessFrontend()
    tokenizer = model_tokenizer(chosen, progress)
    with ExitStack() as resources:
        around = Surroundings(
            frontend=frontend,
            ranks=resources.enter_context(engine_ranks(_as_told(chosen, plugins))),
            decode_text=tokenizer.decode if tokenizer is not None else None,
            tokenizer=tokenizer,
        )
        rank = build_rank(chosen, plugins, surroundings=around)
        held = resources.pop_all()
    return LocalEngine(rank, frontend, tokenizer=tokenizer, resources=held)


def _check_ranks(config: EngineConfig, plugins: Sequence[Chosen]) -> None:
    """Refuse what another process could not be told, or an engine in this one cannot be."""
    engine = config.engine
    problems = []
    if engine.dp > 1:
        problems.append(
            f"engine.dp: an engine in this process is one replica, got {engine.dp}; "
            "`tokenspeed serve --dp` runs several"
        )
    if engine.tp * engine.pp > 1:
        given = [each for each in plugins if not isinstance(each, str)]
        problems += [
            f"plugin {each!r} is an object of this process; other ranks need it installed and named"
            for each in given
        ]
        if "model" in config.data_plane:
            problems.append("data_plane.model: other ranks need a model's name, not an object")
    if problems:
        raise ConfigError(problems)


def _as_told(config: EngineConfig, plugins: Sequence[Chosen]) -> EngineConfig:
    """The configuration as other ranks' processes hear it: with the plugins the caller named."""
    if config.plugins == "auto":
        return config
    named = [each for each in plugins if isinstance(each, str) and each not in config.plugins]
    return attrs.evolve(config, plugins=(*config.plugins, *named))


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
