# SPDX-License-Identifier: MIT
"""Writing a safetensors file tensor by tensor, so that a large model needs little memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    tensors: Iterable[tuple[str, Float32]],
    dtype: str,
) -> None:
    """Write tensors, which must come in the order of `shapes`, all in one stored dtype."""
    header = _header(shapes, dtype)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for (name, array), wanted in zip(tensors, shapes, strict=True):
            assert name == wanted
            assert array.shape == shapes[name]
            file.write(stored(array, dtype).data)
        file.flush()
        os.fsync(file.fileno())


def stored(array: Float32, dtype: str) -> npt.NDArray[np.generic]:
    """Convert to the stored dtype, rounding to nearest even; bf16 comes as its 16 bits."""
    if dtype == "F32":
        return np.ascontiguousarray(array)
    if dtype == "F16":
        return np.ascontiguousarray(array, dtype=np.float16)
    bits = np.ascontiguousarray(array).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: str) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + int(np.prod(shape)) * ITEM_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    return text + b" " * (-len(text) % 8)
