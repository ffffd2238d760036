# SPDX-License-Identifier: MIT
"""A little Llama with random weights, for what has to run a real model and not say anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from attrs import evolve, frozen
from safetensors.torch import save_file

from tokenspeed_core.models.config import ModelConfig, parse_config
from tokenspeed_core.models.expected_weights import expected_weights
from tokenspeed_core.models.weights import TensorWeights

TINY_FIELDS: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": [298, 299],
}


@frozen(kw_only=True)
class TinyModel:
    """A model in memory: pass it to the torch plane as its option `model`.

    `fields` are its config as a config.json has it.
    """

    name: str
    fields: Mapping[str, object]
    config: ModelConfig
    weights: TensorWeights

    def open_weights(self) -> TensorWeights:
        """Return the weights."""
        return self.weights

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> TinyModel:
        """The same model with other weights."""
        return evolve(self, weights=TensorWeights(tensors))

    def save(self, folder: Path) -> str:
        """Write it as a model folder without a tokenizer; the folder as a model's name."""
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.fields))
        save_file(dict(self.weights.tensors), folder / "model.safetensors")
        return str(folder)


def tiny_model(seed: int = 0, **fields: object) -> TinyModel:
    """Make a model whose weights depend on the seed alone; `fields` change its config."""
    every_field = {**TINY_FIELDS, **fields}
    config = parse_config(every_field)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: 1 + 0.1 * torch.randn(shape, generator=generator)
        if name.endswith("norm.weight")
        # Wide enough for logits that are far apart, so that greedy choices are no near ties.
        else 0.3 * torch.randn(shape, generator=generator)
        for name, shape in expected_weights(config).items()
    }
    return TinyModel(
        name=f"tiny-{seed}", fields=every_field, config=config, weights=TensorWeights(tensors)
    )
