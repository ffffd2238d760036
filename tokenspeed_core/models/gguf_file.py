# SPDX-License-Identifier: MIT
"""A GGUF file: its settings and its tensors, dequantised and under Hugging Face names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tokenspeed_core.models.errors import ModelError, bullet_list
from tokenspeed_core.models.safetensors_file import Float32

BLOCK = re.compile(r"^blk\.(\d+)\.(\w+)\.(weight|bias)$")
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Holds the stretching of the rotary positions; it becomes a setting, not a weight.
ROPE_FACTORS = "rope_freqs.weight"


class GgufFile:
    """An opened GGUF file. `architecture` is llama, qwen2, ..., as the file names it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            # The reader trusts the file: damage shows as whatever the first bad number causes.
            raise ModelError(
                f"{path} is not a whole GGUF file ({error}); was its download cut short?"
            ) from error
        self.architecture = str(self.setting("general.architecture"))
        self._by_name = self._hugging_face_names()

    def setting(self, key: str, default: object = None) -> Any:  # boundary: gguf's metadata
        """Return a metadata value; a missing one without a default is a ModelError."""
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise ModelError(f"{self.path}: {key} is missing from its metadata")
        return default

    def has(self, key: str) -> bool:
        """Say whether the metadata holds a key."""
        return self._reader.get_field(key) is not None

    def keys(self, prefix: str) -> list[str]:
        """Return the metadata keys under a prefix."""
        return [key for key in self._reader.fields if key.startswith(prefix)]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor by Hugging Face name, in the file's order."""
        # GGUF counts dimensions from the innermost one.
        return {
            name: tuple(int(size) for size in reversed(tensor.shape))
            for name, tensor in self._by_name.items()
        }

    @property
    def stored_dtype(self) -> str:
        """The safetensors type that loses nothing which the matrices in here still have."""
        kinds = {t.tensor_type.name for t in self._by_name.values() if len(t.shape) > 1}
        return kinds.pop() if kinds in ({"F32"}, {"F16"}) else "BF16"

    def tensors(self, num_heads: int, num_kv_heads: int) -> Iterator[tuple[str, Float32]]:
        """Yield each tensor by Hugging Face name, one in memory at a time."""
        heads = {"q_proj": num_heads, "k_proj": num_kv_heads}
        for name, tensor in self._by_name.items():
            try:
                array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                raise ModelError(
                    f"{self.path}: {name} is stored as {tensor.tensor_type.name}, "
                    f"which cannot be read"
                ) from error
            array = array.astype(np.float32, copy=False)
            layer = name.split(".")[-2]
            if self.architecture == "llama" and layer in heads:
                array = _half_split(array, heads[layer])
            yield name, array

    def rope_factors(self) -> Float32 | None:
        """Return what each rotary frequency is divided by, if the file says so."""
        for tensor in self._reader.tensors:
            if tensor.name == ROPE_FACTORS:
                return np.asarray(tensor.data, dtype=np.float32)
        return None

    def _hugging_face_names(self) -> dict[str, gguf.ReaderTensor]:
        named = {}
        unknown = []
        for tensor in self._reader.tensors:
            name = _translate(tensor.name)
            if name is not None:
                named[name] = tensor
            elif tensor.name != ROPE_FACTORS:
                unknown.append(tensor.name)
        if unknown:
            headline = f"{self.path}: tensors that no supported decoder has"
            more = [f"and {len(unknown) - 10} more"] if len(unknown) > 10 else []
            raise ModelError(bullet_list(headline, unknown[:10] + more))
        return named


def _translate(name: str) -> str | None:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match = BLOCK.match(name)
    if match is None or match[2] not in BLOCK_NAMES:
        return None
    return f"model.layers.{match[1]}.{BLOCK_NAMES[match[2]]}.{match[3]}"


def _half_split(array: Float32, num_heads: int) -> Float32:
    """Undo llama.cpp's order of rows, which puts the two halves of a rotary pair side by side."""
    rows = array.shape[0]
    pairs = array.reshape(num_heads, rows // num_heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
