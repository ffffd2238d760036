# SPDX-License-Identifier: MIT
"""The tokenizer that goes with a configuration, for whoever speaks to clients."""

from __future__ import annotations

from tokenspeed_core.config import EngineConfig
from tokenspeed_core.models.progress import Progress, Silent
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.models.tokenizer import Tokenizer


def model_tokenizer(config: EngineConfig, progress: Progress | None = None) -> Tokenizer | None:
    """Make the model ready in the cache and load its tokenizer; ModelError says why not.

    A scripted data plane and a model given as an object have none.
    """
    if config.engine.data_plane == "scripted" or "model" in config.data_plane:
        return None
    return resolve_model(config.engine.model, progress or Silent()).load_tokenizer()
