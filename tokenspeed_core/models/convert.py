# SPDX-License-Identifier: MIT
"""Turning a GGUF file into a Hugging Face model folder, which later starts read directly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenspeed_core.models.config import ModelConfig, parse_config
from tokenspeed_core.models.expected_weights import check_weights
from tokenspeed_core.models.gguf_config import config_fields, token_id_fields
from tokenspeed_core.models.gguf_file import GgufFile
from tokenspeed_core.models.gguf_tokenizer import build_tokenizer, tokenizer_settings
from tokenspeed_core.models.progress import Progress
from tokenspeed_core.models.safetensors_file import Float32, write_safetensors


def convert_gguf(source: Path, folder: Path, *, progress: Progress) -> None:
    """Write config, weights, tokenizer and chat template of a GGUF file into a folder.

    The folder also loads with `transformers`. ModelError when the file is damaged, or
    holds something that cannot be carried over exactly.
    """
    progress.start(f"Reading {source.name}")
    file = GgufFile(source)
    fields = config_fields(file)
    config = parse_config(fields, where=str(source))
    check_weights(config, file.shapes, where=str(source))
    tokenizer = build_tokenizer(file)
    progress.finish()
    _write_json(folder / "config.json", fields)
    _write_json(folder / "generation_config.json", token_id_fields(file))
    _write_json(folder / "tokenizer_config.json", tokenizer_settings(file))
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    tensors = _followed(file, config, progress=progress)
    write_safetensors(
        folder / "model.safetensors", file.shapes, tensors=tensors, dtype=file.stored_dtype
    )


def _followed(
    file: GgufFile, config: ModelConfig, *, progress: Progress
) -> Iterator[tuple[str, Float32]]:
    total = sum(_num_bytes(shape) for shape in file.shapes.values())
    progress.start(f"Converting {file.path.name}", total_bytes=total)
    for name, array in file.tensors(config.num_heads, config.num_kv_heads):
        yield name, array
        progress.advance(array.nbytes)
    progress.finish()


def _num_bytes(shape: tuple[int, ...]) -> int:
    size = 4
    for length in shape:
        size *= length
    return size


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
