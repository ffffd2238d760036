# SPDX-License-Identifier: MIT
"""A decoder's shape, read from a Hugging Face `config.json`.

What cannot be computed exactly as the model's authors meant it is refused here, by
name. A field we do not know is passed over only if it is listed as having no say in the
forward pass, or if it is switched off (null, false, empty); anything else is an error,
because a model that runs slightly wrong is worse than one that does not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from attrs import frozen

from tokenspeed_core.models.errors import ModelError, bullet_list
from tokenspeed_core.models.fields import FieldReader, read_json_object
from tokenspeed_core.models.harmless_fields import is_harmless
from tokenspeed_core.models.rope import Rope, RopeScaling, read_rope


class Architecture(Enum):
    """The decoder families the engine can run, by their Hugging Face class names."""

    LLAMA = "LlamaForCausalLM"
    QWEN2 = "Qwen2ForCausalLM"
    QWEN3 = "Qwen3ForCausalLM"


@frozen(kw_only=True)
class ModelConfig:
    """Everything the forward pass and the end-of-text rule need to know of a model.

    `attention_bias` is that of the q, k and v projections, `attention_output_bias` that
    of the o projection. `dtype` is the stored one, by its torch name.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    dtype: str


MODEL_TYPES = {
    "llama": Architecture.LLAMA,
    "qwen2": Architecture.QWEN2,
    "qwen3": Architecture.QWEN3,
}
DTYPES = ("float32", "bfloat16", "float16")


def read_config(folder: Path) -> ModelConfig:
    """Read a model folder's config.json, and its generation_config.json if there is one."""
    path = folder / "config.json"
    generation = folder / "generation_config.json"
    return parse_config(
        read_json_object(path),
        generation=read_json_object(generation) if generation.exists() else {},
        where=str(path),
    )


def parse_config(
    fields: Mapping[str, object],
    generation: Mapping[str, object] | None = None,
    *,
    where: str = "config.json",
) -> ModelConfig:
    """Build a ModelConfig from the two JSON objects; one ModelError lists all that is wrong."""
    architecture = _read_architecture(fields, where)
    reader = FieldReader(fields, where)
    _refuse_other_maths(reader, architecture)
    positions = reader.positive("max_position_embeddings")
    rope = read_rope(reader, where, positions=positions)
    config = _read_shape(
        reader, architecture, rope=rope, eos=_generation_ends(generation or {}, where)
    )
    _refuse_unknown(reader)
    reader.finish()
    _check_consistency(config, where)
    return config


def _read_architecture(fields: Mapping[str, object], where: str) -> Architecture:
    supported = ", ".join(known.value for known in Architecture)
    named = fields.get("architectures")
    if isinstance(named, list) and named:
        for known in Architecture:
            if known.value == named[0]:
                return known
        raise ModelError(f"{where}: architecture {named[0]!r} is not supported, only {supported}")
    model_type = fields.get("model_type")
    if isinstance(model_type, str) and model_type in MODEL_TYPES:
        return MODEL_TYPES[model_type]
    raise ModelError(
        f"{where}: no architecture in it (architectures = {named!r}, model_type = {model_type!r}); "
        f"supported are {supported}"
    )


def _read_shape(
    reader: FieldReader, architecture: Architecture, *, rope: Rope, eos: tuple[int, ...]
) -> ModelConfig:
    heads = reader.positive("num_attention_heads")
    hidden = reader.positive("hidden_size")
    head_dim = 128 if architecture is Architecture.QWEN3 else max(1, hidden // heads)
    bias = reader.flag("attention_bias", default=False)
    bos = reader.token_ids("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.positive("intermediate_size"),
        num_layers=reader.positive("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=reader.positive("num_key_value_heads", default=heads),
        head_dim=reader.positive("head_dim", default=head_dim),
        rms_norm_eps=reader.real("rms_norm_eps", default=1e-6),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        max_position_embeddings=reader.positive("max_position_embeddings"),
        tie_word_embeddings=reader.flag("tie_word_embeddings", default=False),
        attention_bias=bias or architecture is Architecture.QWEN2,
        attention_output_bias=bias and architecture is not Architecture.QWEN2,
        mlp_bias=reader.flag("mlp_bias", default=False),
        qk_norm=architecture is Architecture.QWEN3,
        eos_token_ids=tuple(dict.fromkeys(eos + reader.token_ids("eos_token_id"))),
        bos_token_id=bos[0] if bos else None,
        dtype=_read_dtype(reader),
    )


def _read_dtype(reader: FieldReader) -> str:
    new, old = reader.raw("dtype"), reader.raw("torch_dtype")
    value = old if new is None else new
    if value is None:
        return "float32"
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        reader.problem("dtype", value, expected="one of " + ", ".join(DTYPES))
    return name


def _generation_ends(generation: Mapping[str, object], where: str) -> tuple[int, ...]:
    reader = FieldReader(generation, f"generation_config.json beside {where}")
    ends = reader.token_ids("eos_token_id")
    reader.finish()
    return ends


def _refuse_other_maths(reader: FieldReader, architecture: Architecture) -> None:
    reader.expect("hidden_act", "silu", "swish")
    reader.expect("pretraining_tp", 1)
    reader.expect("rope_interleaved", False)
    reader.expect("partial_rotary_factor", 1)
    reader.expect("chunk_size_feed_forward", 0)
    reader.expect("use_sliding_window", False)
    if architecture is not Architecture.LLAMA:
        reader.expect("mlp_bias", False)
        # Qwen files carry a window size that counts only with use_sliding_window.
        reader.ignore(["sliding_window"])
    layer_types = reader.raw("layer_types") or []
    if not isinstance(layer_types, list) or set(layer_types) - {"full_attention"}:
        reader.problem("layer_types", layer_types, expected="full_attention in every layer")
    if quantization := reader.raw("quantization_config"):
        reader.problem(
            "quantization_config", quantization, expected="unquantised safetensors, or a GGUF file"
        )


def _refuse_unknown(reader: FieldReader) -> None:
    for name, value in reader.untaken():
        if not is_harmless(name, value):
            reader.problem(
                name,
                value,
                expected="no such field: it may change the result; remove it if it does not",
            )


def _check_consistency(config: ModelConfig, where: str) -> None:
    problems = []
    if config.num_heads % config.num_kv_heads:
        problems.append(
            f"num_attention_heads = {config.num_heads} is not a multiple of "
            f"num_key_value_heads = {config.num_kv_heads}"
        )
    if config.head_dim % 2:
        problems.append(f"head_dim = {config.head_dim} is odd; rotary positions need pairs")
    problems += [
        f"token id {token_id} is outside vocab_size = {config.vocab_size}"
        for token_id in (*config.eos_token_ids, config.bos_token_id or 0)
        if token_id >= config.vocab_size
    ]
    if problems:
        raise ModelError(bullet_list(f"{where}: inconsistent", problems))
