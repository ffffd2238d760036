# SPDX-License-Identifier: MIT
"""The model on disk that a configuration names, and its tokenizer."""

from __future__ import annotations

from tokenspeed_core.composition.drivers import DATA_PLANES, SCHEDULERS, check_driver
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.models.progress import Progress, Silent
from tokenspeed_core.models.resolve import ModelFolder, resolve_model
from tokenspeed_core.models.tokenizer import Tokenizer


def model_folder(config: EngineConfig, progress: Progress | None = None) -> ModelFolder | None:
    """Make the configured model ready in the cache; ModelError says why that cannot be.

    ConfigError: what would run it is not installed, so that nothing is fetched for it. A scripted
    data plane has no model on disk, nor has one that was given as an object.
    """
    check_driver(DATA_PLANES, config.engine.data_plane, option="engine.data_plane")
    check_driver(SCHEDULERS, config.engine.scheduler, option="engine.scheduler")
    if config.engine.data_plane == "scripted" or "model" in config.data_plane:
        return None
    return resolve_model(config.engine.model, progress or Silent())


def model_tokenizer(config: EngineConfig, progress: Progress | None = None) -> Tokenizer | None:
    """The tokenizer of the configured model, if it is one on disk."""
    folder = model_folder(config, progress)
    return None if folder is None else folder.load_tokenizer()
