# SPDX-License-Identifier: MIT
"""The library's face: an engine from a model, chosen plugins and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.composition.selection import Chosen
from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.engine import LocalEngine
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.frontends.in_process import InProcessFrontend
from tokenspeed_core.models.progress import Progress, Silent
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.models.tokenizer import Tokenizer

_SECTIONS = {"engine": EngineSection, "scheduler": SchedulerSection}


def compose(
    model: str | None = None,
    *,
    plugins: Sequence[Chosen] = (),
    config: EngineConfig | None = None,
    progress: Progress | None = None,
    **options: Any,  # the fields of the engine's and the scheduler's sections
) -> LocalEngine:
    """Compose an engine; start it by `with` or `start`.

    `plugins` are names of installed ones, or classes or instances of `Plugin` defined anywhere.
    Options are those of `[engine]` and `[scheduler]`, by name. CompositionError, ConfigError and
    ModelError say what is wrong before anything runs.
    """
    if model is not None:
        options["model"] = model
    chosen = with_options(config or EngineConfig(), options)
    frontend = InProcessFrontend()
    tokenizer = _tokenizer(chosen, progress or Silent())
    around = Surroundings(
        frontend=frontend, decode_text=tokenizer.decode if tokenizer is not None else None
    )
    rank = build_rank(chosen, plugins, surroundings=around)
    return LocalEngine(rank, frontend, tokenizer=tokenizer)


def with_options(config: EngineConfig, options: dict[str, Any]) -> EngineConfig:
    """The configuration with some options changed by name; ConfigError for an unknown one."""
    owner = {
        field.name: section for section, cls in _SECTIONS.items() for field in attrs.fields(cls)
    }
    changes: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for name, value in options.items():
        if name not in owner:
            raise ConfigError([unknown("option", name, known=owner)])
        changes[owner[name]][name] = value
    return attrs.evolve(
        config,
        engine=attrs.evolve(config.engine, **changes["engine"]),
        scheduler=attrs.evolve(config.scheduler, **changes["scheduler"]),
    )


def _tokenizer(config: EngineConfig, progress: Progress) -> Tokenizer | None:
    """The model's tokenizer; a scripted data plane runs no model and has none."""
    if config.engine.data_plane == "scripted":
        return None
    return resolve_model(config.engine.model, progress).load_tokenizer()
