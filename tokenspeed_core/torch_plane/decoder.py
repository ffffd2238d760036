# SPDX-License-Identifier: MIT
"""A Llama-family decoder: Llama, SmolLM2, Qwen2 and Qwen3, read from their config."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.models.weights import WeightSource
from tokenspeed_core.torch_plane.attention import AttentionPlan, AttentionPlanner
from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache
from tokenspeed_core.torch_plane.linear import Linear, linear, with_fewest_rows
from tokenspeed_core.torch_plane.norm import RMSNorm
from tokenspeed_core.torch_plane.rotary import RotaryTable


class _Loader:
    """Tensors by name, in the decoder's dtype and on its device, one at a time."""

    def __init__(self, source: WeightSource, dtype: torch.dtype, *, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str) -> Tensor:
        return self._source.load(name).to(dtype=self._dtype, device=self._device)

    def norm(self, name: str, config: ModelConfig) -> RMSNorm:
        return RMSNorm(self.tensor(name), config.rms_norm_eps)

    def joined(self, prefix: str, *names: str) -> Linear:
        """Several projections of the same input as one product."""
        weights = torch.cat([self.tensor(f"{prefix}.{name}.weight") for name in names])
        biases = [self._bias(f"{prefix}.{name}.bias", prefix, name=name) for name in names]
        present = [bias for bias in biases if bias is not None]
        return linear(weights, torch.cat(present) if present else None)

    def _bias(self, key: str, prefix: str, *, name: str) -> Tensor | None:
        return self.tensor(key) if key in self._source.shapes else None


class Layer:
    """One block: attention and a gated feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, index: int, *, loader: _Loader) -> None:
        name = f"model.layers.{index}"
        self._heads = (config.num_heads, config.num_kv_heads)
        self._dim = config.head_dim
        self._inner = config.intermediate_size
        self._index = index
        self._input_norm = loader.norm(f"{name}.input_layernorm.weight", config)
        self._post_norm = loader.norm(f"{name}.post_attention_layernorm.weight", config)
        self._qkv = loader.joined(f"{name}.self_attn", "q_proj", "k_proj", "v_proj")
        self._out = loader.joined(f"{name}.self_attn", "o_proj")
        self._gate_up = loader.joined(f"{name}.mlp", "gate_proj", "up_proj")
        self._down = loader.joined(f"{name}.mlp", "down_proj")
        self._norms: tuple[RMSNorm, RMSNorm] | None = None
        if config.qk_norm:
            own = f"{name}.self_attn"
            self._norms = (
                loader.norm(f"{own}.q_norm.weight", config),
                loader.norm(f"{own}.k_norm.weight", config),
            )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """The residual stream [rows, hidden] after this block; the one given is written over."""
        attended = self._attend(self._input_norm(x), step)
        if step.wanted is not None and self._index == step.last_layer:
            # Nothing reads the other tokens after this.
            x = with_fewest_rows(x.index_select(0, step.wanted))
            attended = with_fewest_rows(attended.index_select(0, step.wanted))
        x = x.add_(self._out(attended))
        gate_up = self._gate_up(self._post_norm(x))
        gate, up = gate_up[:, : self._inner], gate_up[:, self._inner :]
        return x.add_(self._down(functional.silu(gate).mul_(up)))

    def _attend(self, x: Tensor, step: Step) -> Tensor:
        """Attention before its output projection: [rows, heads x head_dim]."""
        heads, kv_heads = self._heads
        qkv = self._qkv(x)[: step.num_tokens].view(step.num_tokens, -1, self._dim)
        if self._norms is not None:
            queries, keys, _ = qkv.split((heads, kv_heads, kv_heads), 1)
            queries.copy_(self._norms[0](queries))
            keys.copy_(self._norms[1](keys))
        step.rotary.rotate_(qkv[:, : heads + kv_heads], step.angles)
        step.plan.attend(self._index, qkv, out=step.attended_heads)
        return step.attended


@frozen(eq=False)
class Step:
    """What every layer of one forward shares.

    Rows beyond `num_tokens` are there for the products' sake only. `wanted` are the tokens whose
    hidden states are asked for; None for all of them in order.
    """

    num_tokens: int
    last_layer: int
    plan: AttentionPlan
    rotary: RotaryTable
    angles: tuple[Tensor, Tensor]
    # [rows, heads x head_dim], and its first `num_tokens` rows as [tokens, heads, head_dim]
    attended: Tensor
    attended_heads: Tensor
    wanted: Tensor | None


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
        self._norm = loader.norm("model.norm.weight", config)
        tied = config.tie_word_embeddings
        self._head = linear(self.embedding if tied else loader.tensor("lm_head.weight"))
        positions = max_positions or config.max_position_embeddings
        self._rotary = RotaryTable(config, positions, dtype=dtype, device=device)
        self.planner: AttentionPlanner | None = None

    @torch.inference_mode()
    def hidden(self, inputs: ForwardInputs, cache: PagedKVCache) -> Tensor:
        """Normalised hidden states [n, hidden_size] of `inputs.logit_rows`, in the model's dtype.

        The keys and values of all tokens are in their pages when it returns.
        """
        if self.planner is None or self.planner.cache is not cache:
            self.planner = AttentionPlanner(cache, num_heads=self.config.num_heads)
        x = with_fewest_rows(functional.embedding(inputs.token_ids, self.embedding))
        step = self._step(inputs, x, plan=self.planner.plan(inputs))
        for layer in self.layers:
            x = layer(x, step)
        step.plan.finish()
        return self._norm(x)[: len(inputs.logit_rows)]

    def _step(self, inputs: ForwardInputs, x: Tensor, *, plan: AttentionPlan) -> Step:
        count, heads, dim = len(inputs.token_ids), self.config.num_heads, self.config.head_dim
        attended = x.new_zeros(len(x), heads * dim)
        return Step(
            num_tokens=count,
            last_layer=len(self.layers) - 1,
            plan=plan,
            rotary=self._rotary,
            angles=self._rotary.at(inputs.positions),
            attended=attended,
            attended_heads=attended[:count].view(count, heads, dim),
            wanted=None if inputs.wants_all else inputs.logit_rows,
        )

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab_size] of hidden states [n, hidden_size]."""
        return self._head(with_fewest_rows(hidden))[: len(hidden)]

    def forward(self, inputs: ForwardInputs, cache: PagedKVCache) -> Tensor:
        """Logits [n, vocab_size] of `inputs.logit_rows`."""
        return self.logits(self.hidden(inputs, cache))
