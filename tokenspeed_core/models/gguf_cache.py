# SPDX-License-Identifier: MIT
"""GGUF files as model folders in the cache: converted once, read directly afterwards."""

from __future__ import annotations

import hashlib
import importlib
from functools import partial
from pathlib import Path

from tokenspeed_core.models.cache import LAYOUT, build_once
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.progress import Progress


def gguf_folder(path: Path, root: Path, *, progress: Progress) -> Path:
    """Return the converted folder of a GGUF file, building it when the file is new or changed."""
    if path.suffix != ".gguf":
        raise ModelError(
            f"{path} is a file, but not a .gguf one; give the folder it is in if it holds a model"
        )
    # Size and time stand for the content: reading gigabytes to hash them would be felt.
    state = path.stat()
    identity = f"{path.resolve()}:{state.st_size}:{state.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    entry = root / "models" / f"{path.stem}-{key}-{LAYOUT}"
    return build_once(
        entry, partial(write_model_folder, path, progress=progress), progress=progress
    )


def write_model_folder(source: Path, folder: Path, *, progress: Progress) -> None:
    """Convert a GGUF file into a folder."""
    # Loaded by name, so that a start from the cache does not pay for reading GGUF files.
    converter = importlib.import_module("tokenspeed_core.models.convert")
    converter.convert_gguf(source, folder, progress=progress)
