# SPDX-License-Identifier: MIT
"""A Llama-family decoder: Llama, SmolLM2, Qwen2 and Qwen3, read from their config."""

from __future__ import annotations

import torch
from attrs import frozen
from torch.nn import functional

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.models.weights import WeightSource
from tokenspeed_core.torch_plane.attention import AttentionPlan, AttentionPlanner, attend
from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache
from tokenspeed_core.torch_plane.linear import Linear, linear
from tokenspeed_core.torch_plane.rotary import RotaryTable


class _Loader:
    """Tensors by name, in the decoder's dtype and on its device, one at a time."""

    def __init__(self, source: WeightSource, dtype: torch.dtype, *, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str) -> torch.Tensor:
        return self._source.load(name).to(dtype=self._dtype, device=self._device)

    def joined(self, prefix: str, *names: str) -> Linear:
        """Several projections of the same input as one product."""
        weights = torch.cat([self.tensor(f"{prefix}.{name}.weight") for name in names])
        biases = [self._bias(f"{prefix}.{name}.bias", prefix, name=name) for name in names]
        present = [bias for bias in biases if bias is not None]
        return linear(weights, torch.cat(present) if present else None)

    def _bias(self, key: str, prefix: str, *, name: str) -> torch.Tensor | None:
        return self.tensor(key) if key in self._source.shapes else None


class Layer:
    """One block: attention and a gated feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, index: int, *, loader: _Loader) -> None:
        name = f"model.layers.{index}"
        self._heads = (config.num_heads, config.num_kv_heads)
        self._dim = config.head_dim
        self._eps = config.rms_norm_eps
        self._index = index
        self._input_norm = loader.tensor(f"{name}.input_layernorm.weight")
        self._post_norm = loader.tensor(f"{name}.post_attention_layernorm.weight")
        self._qkv = loader.joined(f"{name}.self_attn", "q_proj", "k_proj", "v_proj")
        self._out = loader.joined(f"{name}.self_attn", "o_proj")
        self._gate_up = loader.joined(f"{name}.mlp", "gate_proj", "up_proj")
        self._down = loader.joined(f"{name}.mlp", "down_proj")
        self._norms: tuple[torch.Tensor, torch.Tensor] | None = None
        if config.qk_norm:
            own = f"{name}.self_attn"
            self._norms = (
                loader.tensor(f"{own}.q_norm.weight"),
                loader.tensor(f"{own}.k_norm.weight"),
            )

    def __call__(self, x: torch.Tensor, step: _Step) -> torch.Tensor:
        """Add this block to the residual stream [tokens, hidden], in place."""
        normed = functional.rms_norm(x, self._input_norm.shape, self._input_norm, self._eps)
        x = x.add_(self._attend(normed, step))
        normed = functional.rms_norm(x, self._post_norm.shape, self._post_norm, self._eps)
        gate, up = self._gate_up(normed).chunk(2, dim=-1)
        return x.add_(self._down(functional.silu(gate).mul_(up)))

    def _attend(self, x: torch.Tensor, step: _Step) -> torch.Tensor:
        heads, kv_heads = self._heads
        qkv = self._qkv(x).view(len(x), -1, self._dim)
        if self._norms is not None:
            of_queries, of_keys = self._norms
            queries, keys = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
            queries.copy_(functional.rms_norm(queries, of_queries.shape, of_queries, self._eps))
            keys.copy_(functional.rms_norm(keys, of_keys.shape, of_keys, self._eps))
        step.rotary.rotate_(qkv[:, : heads + kv_heads], step.angles)
        return self._out(attend(self._index, qkv, plan=step.plan, cache=step.cache).flatten(1))


@frozen(eq=False)
class _Step:
    """What every layer of one forward shares."""

    cache: PagedKVCache
    plan: AttentionPlan
    rotary: RotaryTable
    angles: tuple[torch.Tensor, torch.Tensor]


class Decoder:
    """The whole model on one device."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int | None = None,
    ) -> None:
        loader = _Loader(weights, dtype, device=device)
        self.config = config
        self.dtype = dtype
        self.device = device
        self.embedding = loader.tensor("model.embed_tokens.weight")
        self.layers = [Layer(config, i, loader=loader) for i in range(config.num_layers)]
        self._norm = loader.tensor("model.norm.weight")
        tied = config.tie_word_embeddings
        self._head = linear(self.embedding if tied else loader.tensor("lm_head.weight"))
        positions = max_positions or config.max_position_embeddings
        self._rotary = RotaryTable(config, positions, device=device)
        self.planner: AttentionPlanner | None = None

    @torch.inference_mode()
    def hidden(self, inputs: ForwardInputs, cache: PagedKVCache) -> torch.Tensor:
        """Normalised hidden states [n, hidden_size] of `inputs.logit_rows`, in the model's dtype.

        The keys and values of all tokens are in their pages when it returns.
        """
        if self.planner is None or self.planner.cache is not cache:
            self.planner = AttentionPlanner(cache)
        plan = self.planner.plan(inputs)
        step = _Step(cache, plan, self._rotary, self._rotary.at(inputs.positions, self.dtype))
        x = functional.embedding(inputs.token_ids, self.embedding)
        for layer in self.layers:
            x = layer(x, step)
        plan.finish()
        wanted = x.index_select(0, inputs.logit_rows)
        return functional.rms_norm(wanted, self._norm.shape, self._norm, self.config.rms_norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab_size] of hidden states [n, hidden_size]."""
        return self._head(hidden)

    def forward(self, inputs: ForwardInputs, cache: PagedKVCache) -> torch.Tensor:
        """Logits [n, vocab_size] of `inputs.logit_rows`."""
        return self.logits(self.hidden(inputs, cache))
