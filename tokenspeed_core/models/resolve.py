# SPDX-License-Identifier: MIT
"""From what a person writes as a model to a folder that can be loaded."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from attrs import frozen

from tokenspeed_core.models.cache import cache_root
from tokenspeed_core.models.config import ModelConfig, read_config
from tokenspeed_core.models.default_model import DEFAULT_MODELS, packaged_folder
from tokenspeed_core.models.errors import ModelError, bullet_list
from tokenspeed_core.models.gguf_cache import gguf_folder
from tokenspeed_core.models.hub import hub_folder
from tokenspeed_core.models.progress import Progress, Silent
from tokenspeed_core.models.tokenizer import Tokenizer, load_tokenizer
from tokenspeed_core.models.weights import SafetensorsWeights, open_weights

HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$", re.ASCII)
CHOICES = (
    *(model.name for model in DEFAULT_MODELS),
    "a folder with config.json, tokenizer.json and *.safetensors",
    "a .gguf file",
    "a Hugging Face id such as org/name",
)


@frozen
class ModelFolder:
    """A model on disk: its name as given, where it is, and its shape."""

    name: str
    path: Path
    config: ModelConfig

    def load_tokenizer(self) -> Tokenizer:
        """Read the tokenizer; ModelError if it is missing or knows more ids than the model."""
        tokenizer = load_tokenizer(self.path)
        if tokenizer.vocab_size > self.config.vocab_size:
            raise ModelError(
                f"{self.path}: the tokenizer has {tokenizer.vocab_size} ids, the model only "
                f"{self.config.vocab_size}; do the files belong together?"
            )
        return tokenizer

    def open_weights(self) -> SafetensorsWeights:
        """Check the weights' names and shapes and return them, none loaded yet."""
        return open_weights(self.path, self.config)


def resolve_model(
    name: str, progress: Progress | None = None, *, root: Path | None = None
) -> ModelFolder:
    """Find a model and make it ready in the cache if it must be fetched or converted.

    A short name wins over a folder of that name (write `./name` for the folder).
    ModelError names the choices when nothing fits.
    """
    path = _folder_of(name, root or cache_root(), progress=progress or Silent())
    return ModelFolder(name=name, path=path, config=read_config(path))


def _folder_of(name: str, root: Path, *, progress: Progress) -> Path:
    for model in DEFAULT_MODELS:
        if model.name == name:
            return packaged_folder(model, root, progress=progress)
    # The functions of os.path, unlike Path's methods, take any string without raising.
    path = Path(os.path.expanduser(name))
    if os.path.isdir(name and path):
        return path
    if os.path.isfile(path):
        return gguf_folder(path, root, progress=progress)
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")):
        raise ModelError(f"{path}: no such file or folder")
    if HUB_NAME.match(name):
        return hub_folder(name, progress)
    raise ModelError(_unknown(name))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [model.name for model in DEFAULT_MODELS], n=1)
    hint = f"; did you mean {near[0]}" if near else ""
    return bullet_list(f"unknown model {name!r}{hint}. A model is one of", CHOICES)
