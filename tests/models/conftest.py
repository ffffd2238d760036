# SPDX-License-Identifier: MIT
"""Small models made on the spot, and the default model from the ordinary cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from tokenspeed_core.models.config import parse_config
from tokenspeed_core.models.expected_weights import expected_weights
from tokenspeed_core.models.resolve import ModelFolder, resolve_model
from tokenspeed_core.models.token_bytes import byte_characters

SHAPE: dict[str, object] = {
    "vocab_size": 262,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 261,
    "bos_token_id": 260,
}
LLAMA_CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPE}
TOKENS = [*byte_characters(), "th", "the", "\u0120the", "\u0120t", "<|start|>", "<|end|>"]
MERGES = ["t h", "th e", "\u0120 the", "\u0120 t"]
CHAT_TEMPLATE = "{% for m in messages %}{{ '<|start|>' + m['content'] + '<|end|>' }}{% endfor %}"

GgufFields = dict[str, object]
MakeModel = Callable[..., transformers.PreTrainedModel]


@pytest.fixture(scope="session")
def default_model() -> ModelFolder:
    """The model a first-time user gets; fetched and converted if this machine never did."""
    return resolve_model("smollm2-135m")


@pytest.fixture
def llama_fields() -> dict[str, object]:
    """A config.json's content that is right in every field."""
    return dict(LLAMA_CONFIG)


@pytest.fixture
def llama_folder(tmp_path: Path) -> Path:
    """A whole little model folder with random weights, without a tokenizer."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    shapes = expected_weights(parse_config(LLAMA_CONFIG))
    save_file({n: torch.zeros(s) for n, s in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def random_model() -> MakeModel:
    """A function that makes a little transformers model with random weights, biases included."""

    def make(
        config_class: type[transformers.PretrainedConfig] = transformers.LlamaConfig,
        model_class: type[transformers.PreTrainedModel] = transformers.LlamaForCausalLM,
        **changes: object,
    ) -> transformers.PreTrainedModel:
        torch.manual_seed(0)
        model = model_class(config_class(**{**SHAPE, **changes})).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.2)
        return model

    return make


@pytest.fixture
def make_gguf(tmp_path: Path, random_model: MakeModel) -> Callable[..., Path]:
    """A function that writes a transformers model (or a default one) as a GGUF file."""

    def make(
        model: transformers.PreTrainedModel | None = None,
        *,
        settings: GgufFields | None = None,
        kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        extra: dict[str, np.ndarray] | None = None,
    ) -> Path:
        path = tmp_path / "tiny.gguf"
        model = model or random_model()
        writer = gguf.GGUFWriter(path, model.config.model_type)
        write_settings(writer, model.config, settings or {})
        write_tensors(writer, model, kind)
        for name, array in (extra or {}).items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def write_settings(
    writer: gguf.GGUFWriter, config: transformers.PretrainedConfig, settings: GgufFields
) -> None:
    """Write the metadata llama.cpp's converter writes, with some of it changed."""
    prefix = config.model_type
    found: GgufFields = {
        f"{prefix}.block_count": config.num_hidden_layers,
        f"{prefix}.context_length": config.max_position_embeddings,
        f"{prefix}.embedding_length": config.hidden_size,
        f"{prefix}.feed_forward_length": config.intermediate_size,
        f"{prefix}.attention.head_count": config.num_attention_heads,
        f"{prefix}.attention.head_count_kv": config.num_key_value_heads,
        f"{prefix}.attention.key_length": config.head_dim,
        f"{prefix}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{prefix}.rope.freq_base": config.rope_theta,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 260,
        "tokenizer.ggml.eos_token_id": 261,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [1] * 260 + [3, 3],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.chat_template": CHAT_TEMPLATE,
        **settings,
    }
    for key, value in found.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, int(str(value)))


def write_tensors(
    writer: gguf.GGUFWriter,
    model: transformers.PreTrainedModel,
    kind: gguf.GGMLQuantizationType,
) -> None:
    """Write the weights under GGUF names, in llama.cpp's order of rotary rows for llama."""
    config = model.config
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers
    )
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        layer = name.split(".")[-2]
        if config.model_type == "llama" and layer in heads:
            halves = array.reshape(heads[layer], 2, -1, *array.shape[1:])
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        stored = kind if array.ndim > 1 else gguf.GGMLQuantizationType.F32
        translated = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert translated is not None, name
        writer.add_tensor(translated, gguf.quants.quantize(array, stored), raw_dtype=stored)
