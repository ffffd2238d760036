# SPDX-License-Identifier: MIT
"""A GGUF file's settings as the two JSON files of a Hugging Face model folder.

As with a config.json, a setting that could change the maths and is not known stops the
conversion instead of being passed over.
"""

from __future__ import annotations

import numpy as np

from tokenspeed_core.models.config import Architecture
from tokenspeed_core.models.errors import ModelError, bullet_list
from tokenspeed_core.models.gguf_file import GgufFile
from tokenspeed_core.models.safetensors_file import Float32

ARCHITECTURES = {
    "llama": Architecture.LLAMA,
    "qwen2": Architecture.QWEN2,
    "qwen3": Architecture.QWEN3,
}
TORCH_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
KNOWN_SETTINGS = frozenset(
    {
        "vocab_size",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
    }
)
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# What every published Llama 3.x model was stretched with, apart from the factor.
LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config_fields(file: GgufFile) -> dict[str, object]:
    """Return the content of config.json."""
    architecture = ARCHITECTURES.get(file.architecture)
    if architecture is None:
        raise ModelError(
            f"{file.path}: architecture {file.architecture!r} is not supported, "
            f"only {', '.join(ARCHITECTURES)}"
        )
    _refuse_unknown(file)
    prefix = file.architecture
    shapes = file.shapes
    heads = file.setting(f"{prefix}.attention.head_count")
    hidden = file.setting(f"{prefix}.embedding_length")
    fields: dict[str, object] = {
        "architectures": [architecture.value],
        "model_type": file.architecture,
        "vocab_size": shapes.get("model.embed_tokens.weight", (0,))[0],
        "hidden_size": hidden,
        "intermediate_size": file.setting(f"{prefix}.feed_forward_length"),
        "num_hidden_layers": file.setting(f"{prefix}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.setting(f"{prefix}.attention.head_count_kv", heads),
        "head_dim": _head_dim(file, hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": file.setting(f"{prefix}.context_length"),
        "rms_norm_eps": _shortest(file.setting(f"{prefix}.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(file.setting(f"{prefix}.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "attention_bias": any(name.endswith("q_proj.bias") for name in shapes),
        "mlp_bias": any(name.endswith("up_proj.bias") for name in shapes),
        "torch_dtype": TORCH_DTYPES[file.stored_dtype],
    }
    if scaling := _rope_scaling(file, fields):
        fields["rope_scaling"] = scaling
    return fields | token_id_fields(file)


def token_id_fields(file: GgufFile) -> dict[str, object]:
    """Return the special token ids, which both config.json and generation_config.json hold."""
    ends = [file.setting(key) for key in _token_keys(file, END_KEYS)]
    fields: dict[str, object] = {"eos_token_id": ends[0] if len(ends) == 1 else ends or None}
    for role, key in (("bos_token_id", "bos_token_id"), ("pad_token_id", "padding_token_id")):
        for found in _token_keys(file, (key,)):
            fields[role] = file.setting(found)
    return fields


def _token_keys(file: GgufFile, names: tuple[str, ...]) -> list[str]:
    return [key for name in names if file.has(key := f"tokenizer.ggml.{name}")]


def _refuse_unknown(file: GgufFile) -> None:
    prefix = f"{file.architecture}."
    unknown = [
        f"{key} = {value!r}"
        for key in file.keys(prefix)
        if key.removeprefix(prefix) not in KNOWN_SETTINGS and (value := file.setting(key))
    ]
    if unknown:
        headline = f"{file.path}: settings that are not supported and may change the result"
        raise ModelError(bullet_list(headline, unknown))


def _head_dim(file: GgufFile, default: int) -> int:
    head_dim: int = file.setting(f"{file.architecture}.attention.key_length", default)
    for key in ("attention.value_length", "rope.dimension_count"):
        other = file.setting(f"{file.architecture}.{key}", head_dim)
        if other != head_dim:
            raise ModelError(
                f"{file.path}: {file.architecture}.{key} = {other}; expected the head size "
                f"{head_dim}"
            )
    return head_dim


def _rope_scaling(file: GgufFile, fields: dict[str, object]) -> dict[str, object] | None:
    factors = file.rope_factors()
    if factors is not None:
        return _llama3_scaling(file, factors, fields=fields)
    prefix = f"{file.architecture}.rope.scaling"
    kind = file.setting(f"{prefix}.type", "none")
    if kind == "none":
        return None
    scaling: dict[str, object] = {
        "rope_type": kind,
        "factor": _shortest(file.setting(f"{prefix}.factor")),
    }
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = file.setting(
            f"{prefix}.original_context_length"
        )
    return scaling


def _llama3_scaling(
    file: GgufFile, factors: Float32, *, fields: dict[str, object]
) -> dict[str, object]:
    """Find the settings that give the file's table of factors, or refuse it."""
    factor = round(float(factors.max()), 4)
    made = llama3_factors(factor, theta=float(str(fields["rope_theta"])), pairs=len(factors))
    if len(factors) * 2 != fields["head_dim"] or not np.allclose(factors, made, rtol=1e-3):
        raise ModelError(
            f"{file.path}: its table of rotary factors is not that of a Llama 3 model "
            f"(factor {factor}, {LLAMA3_ROPE}); other tables are not supported"
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3_ROPE}


def llama3_factors(factor: float, *, theta: float, pairs: int) -> Float32:
    """Return what Llama 3's stretching divides each rotary frequency by."""
    wavelengths = 2 * np.pi * theta ** (np.arange(pairs) / pairs)
    turns = LLAMA3_ROPE["original_max_position_embeddings"] / wavelengths
    low, high = LLAMA3_ROPE["low_freq_factor"], LLAMA3_ROPE["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), dtype=np.float32)


def _shortest(value: float) -> float:
    """Give back the decimal number that a 32-bit float was made from."""
    return float(str(np.float32(value)))
