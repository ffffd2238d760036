# SPDX-License-Identifier: MIT
"""Model folders from the Hugging Face hub."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub

from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.progress import Progress

# Never pickles, which can run code; nor the other copies of the weights some repos hold.
WANTED_FILES = (
    "*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
NOT_BELOW_THE_TOP = "*/*"


def hub_folder(
    repo: str, progress: Progress, *, endpoint: str | None = None, cache: Path | None = None
) -> Path:
    """Return the local snapshot of `org/name`, fetched or brought up to date if need be.

    The hub library's own cache and settings (HF_HOME, HF_TOKEN, HF_ENDPOINT) are used;
    without a network a snapshot fetched earlier is taken. ModelError if there is none.
    """
    progress.start(f"Fetching {repo} from the Hugging Face hub")
    try:
        with _without_bars():
            folder = huggingface_hub.snapshot_download(
                repo,
                allow_patterns=list(WANTED_FILES),
                ignore_patterns=[NOT_BELOW_THE_TOP],
                endpoint=endpoint,
                cache_dir=cache,
            )
    except FileNotFoundError as error:
        raise ModelError(
            f"{repo} is not in the local Hugging Face cache and the hub cannot be reached; "
            f"check the network, or give a local folder or a GGUF file"
        ) from error
    except (OSError, ValueError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"cannot fetch {repo} from the Hugging Face hub: {said}") from error
    progress.finish()
    return Path(folder)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the hub library from drawing on the terminal: our own progress is shown."""
    # Loaded by name, for it takes longer than all else a start from local files does.
    drawing: Any = importlib.import_module("huggingface_hub.utils")
    if drawing.are_progress_bars_disabled():
        yield
        return
    drawing.disable_progress_bars()
    try:
        yield
    finally:
        drawing.enable_progress_bars()
