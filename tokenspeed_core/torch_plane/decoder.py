# SPDX-License-Identifier: MIT
"""A Llama-family decoder: Llama, SmolLM2, Qwen2 and Qwen3, read from their config."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import define, frozen
from torch import Tensor

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.models.expected_weights import Shape, expected_weights
from tokenspeed_core.models.weights import WeightSource
from tokenspeed_core.torch_plane.attention import AttentionPlan, AttentionPlanner
from tokenspeed_core.torch_plane.decoder_part import WHOLE, DecoderPart
from tokenspeed_core.torch_plane.inputs import ForwardInputs
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache
from tokenspeed_core.torch_plane.linear import (
    FEWEST_ROWS,
    Linear,
    PlainLinear,
    products,
    with_fewest_rows,
)
from tokenspeed_core.torch_plane.named_weights import NamedWeights
from tokenspeed_core.torch_plane.norm import RMSNorm
from tokenspeed_core.torch_plane.rotary import RotaryTable
from tokenspeed_core.torch_plane.row_operations import row_operations
from tokenspeed_core.torch_plane.stored import PlainTensor

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


class _Parts:
    """Makes the decoder's parts, and notes which weights belong into them."""

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        eps: float,
        *,
        part: DecoderPart,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.rows = row_operations(dtype, device)
        self.products = products(dtype, device)
        self.fewest_rows = self.products.fewest_rows if part.is_whole else FEWEST_ROWS
        self.weights = NamedWeights(shapes, dtype=dtype, device=device)
        self._dtype = dtype
        self._eps = eps

    def finish(self) -> None:
        """Wait until all parts are ready; EngineError if one cannot be."""
        self.rows.finish()
        self.products.finish()

    def norm(self, name: str) -> RMSNorm:
        width = self.weights.shapes[name][0]
        norm = RMSNorm(self.rows.norm(width, self._eps), dtype=self._dtype)
        self.weights.add(norm, name)
        return norm

    def joined(self, prefix: str, *names: str) -> Linear:
        """Several projections of the same input as one product; all have a bias or none has."""
        biases = [f"{prefix}.{name}.bias" for name in names]
        product = self.products.make(has_bias=biases[0] in self.weights.shapes)
        self.weights.add(product.weight, *(f"{prefix}.{name}.weight" for name in names))
        if product.bias is not None:
            self.weights.add(product.bias, *biases)
        return product

    def embedding(self) -> PlainTensor:
        table = PlainTensor()
        self.weights.add(table, EMBEDDING)
        return table

    def head(self, embedding: PlainTensor | None) -> Linear:
        """From hidden states to logits; a tied one shares the embedding where it is kept so."""
        is_tied = HEAD not in self.weights.shapes
        if is_tied and embedding is not None and self.products.keeps_layout:
            return PlainLinear(embedding, has_bias=False)
        head = self.products.make(has_bias=False)
        self.weights.add(head.weight, EMBEDDING if is_tied else HEAD)
        return head


class Layer:
    """One block: attention and a gated feed-forward, each added to the residual stream."""

    def __init__(
        self, config: ModelConfig, index: int, *, parts: _Parts, part: DecoderPart
    ) -> None:
        name = f"model.layers.{part.first_layer + index}"
        self._part = part
        self._fewest_rows = parts.fewest_rows
        self._heads = (config.num_heads, config.num_kv_heads)
        self._dim = config.head_dim
        self._gate = parts.rows.gate(config.intermediate_size)
        self._rotate = parts.rows.rotation(sum(self._heads), self._dim)
        self._index = index
        self._input_norm = parts.norm(f"{name}.input_layernorm.weight")
        self._post_norm = parts.norm(f"{name}.post_attention_layernorm.weight")
        self._qkv = parts.joined(f"{name}.self_attn", "q_proj", "k_proj", "v_proj")
        self._out = parts.joined(f"{name}.self_attn", "o_proj")
        self._gate_up = parts.joined(f"{name}.mlp", "gate_proj", "up_proj")
        self._down = parts.joined(f"{name}.mlp", "down_proj")
        self._norms: tuple[RMSNorm, RMSNorm] | None = None
        if config.qk_norm:
            own = f"{name}.self_attn"
            self._norms = (
                parts.norm(f"{own}.q_norm.weight"),
                parts.norm(f"{own}.k_norm.weight"),
            )

    def __call__(self, stream: Stream, step: Step) -> None:
        """Add this block to the residual stream."""
        attended = self._attend(self._input_norm(stream.x, stream.added), step)
        if step.wanted is not None and self._index == step.last_layer:
            # Nothing reads the other tokens after this.
            stream.x = self._wanted(stream.x, step.wanted)
            attended = self._wanted(attended, step.wanted)
        added = self._part.summed(self._out(attended))
        gated = self._gate(self._gate_up(self._post_norm(stream.x, added)))
        stream.added = self._part.summed(self._down(gated))

    def _wanted(self, x: Tensor, rows: Tensor) -> Tensor:
        return with_fewest_rows(x.index_select(0, rows), self._fewest_rows)

    def _attend(self, x: Tensor, step: Step) -> Tensor:
        """Attention before its output projection: [rows, heads x head_dim]."""
        qkv = self._qkv(x)[: step.num_tokens].view(step.num_tokens, -1, self._dim)
        if self._norms is not None:
            heads, kv_heads = self._heads
            queries, keys, _ = qkv.split((heads, kv_heads, kv_heads), 1)
            for own, norm in zip((queries, keys), self._norms, strict=True):
                own.copy_(norm(own.reshape(-1, self._dim).contiguous()).view(own.shape))
        self._rotate(qkv, step.angles)
        step.plan.attend(self._index, qkv, out=step.attended_heads)
        return step.attended


@define(eq=False)
class Stream:
    """The residual stream: `x` [rows, hidden], and what still has to be added to it.

    Whoever normalises it next adds, which costs nothing there. Both are written over.
    """

    x: Tensor
    added: Tensor | None = None


@frozen(eq=False)
class Step:
    """What every layer of one forward shares.

    Rows beyond `num_tokens` are there for the products' sake only. `wanted` are the tokens whose
    hidden states are asked for; None for all of them in order.
    """

    num_tokens: int
    last_layer: int
    plan: AttentionPlan
    angles: tuple[Tensor, Tensor]
    # [rows, heads x head_dim], and its first `num_tokens` rows as [tokens, heads, head_dim]
    attended: Tensor
    attended_heads: Tensor
    wanted: Tensor | None


class Decoder:
    """The whole model on one device.

    `weights` may be replaced between forwards; the objects that use them stay the same.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        part: DecoderPart = WHOLE,
    ) -> None:
        # A whole model's files may hold more than it needs.
        shapes = expected_weights(config) if part.is_whole else weights.shapes
        parts = _Parts(shapes, config.rms_norm_eps, part=part, dtype=dtype, device=device)
        self.config = config
        self.dtype = dtype
        self.device = device
        self.weights = parts.weights
        self.part = part
        self._fewest_rows = parts.fewest_rows
        self._decoding = parts.rows.decoding(
            config.num_heads, config.num_kv_heads, dim=config.head_dim
        )
        self._embedding = parts.embedding() if part.is_first else None
        self.layers = [Layer(config, i, parts=parts, part=part) for i in range(config.num_layers)]
        self._norm = parts.norm(NORM) if part.is_last else None
        self._head = parts.head(self._embedding) if part.is_last else None
        self.weights.load(weights)
        parts.finish()
        positions = part.max_positions or config.max_position_embeddings
        self._rotary = RotaryTable(config, positions, dtype=dtype, device=device)
        self.planner: AttentionPlanner | None = None

    @torch.inference_mode()
    def hidden(self, inputs: ForwardInputs, cache: PagedKVCache) -> Tensor:
        """Normalised hidden states [n, hidden_size] of `inputs.logit_rows`, in the model's dtype.

        The keys and values of all tokens are in their pages when it returns. A part that is not the
        last hands its hidden states on, and what it returns means nothing.
        """
        if self.planner is None or self.planner.cache is not cache:
            heads = self.config.num_heads
            self.planner = AttentionPlanner(cache, num_heads=heads, decoding=self._decoding)
        x = self._entering(inputs.token_ids)
        step = self._step(inputs, x, plan=self.planner.plan(inputs))
        stream = Stream(x)
        for layer in self.layers:
            layer(stream, step)
        if self._norm is not None:
            return self._norm(stream.x, stream.added)[: len(inputs.logit_rows)]
        assert self.part.stages is not None, "only a stage has a next one"
        assert stream.added is not None, "a stage has layers"
        self.part.stages.send_hidden(stream.x.add_(stream.added))
        return stream.x

    def _entering(self, token_ids: Tensor) -> Tensor:
        """The residual stream [rows, hidden] before the first layer here."""
        if self._embedding is not None and self.part.is_first:
            x = self.part.embedded(token_ids, self._embedding.tensor)
            return with_fewest_rows(x, self._fewest_rows)
        assert self.part.stages is not None, "only a stage has one before it"
        rows = max(len(token_ids), self._fewest_rows)
        like = torch.empty(rows, self.config.hidden_size, dtype=self.dtype, device=self.device)
        return self.part.stages.receive_hidden(like)

    def _step(self, inputs: ForwardInputs, x: Tensor, *, plan: AttentionPlan) -> Step:
        count, heads, dim = len(inputs.token_ids), self.config.num_heads, self.config.head_dim
        attended = x.new_zeros(len(x), heads * dim)
        return Step(
            num_tokens=count,
            last_layer=len(self.layers) - 1,
            plan=plan,
            angles=self._rotary.at(inputs.positions),
            attended=attended,
            attended_heads=attended[:count].view(count, heads, dim),
            wanted=None if inputs.wants_all or self._norm is None else inputs.logit_rows,
        )

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab_size] of hidden states [n, hidden_size]."""
        assert self._head is not None, "only the last part gives logits"
        x = with_fewest_rows(hidden, self._fewest_rows)
        return self.part.all_logits(self._head(x)[: len(hidden)])

    def forward(self, inputs: ForwardInputs, cache: PagedKVCache) -> Tensor:
        """Logits [n, vocab_size] of `inputs.logit_rows`."""
        return self.logits(self.hidden(inputs, cache))
