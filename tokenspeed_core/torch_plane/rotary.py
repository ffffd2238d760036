# SPDX-License-Identifier: MIT
"""Rotary position embeddings: cosine and sine tables for each way of stretching them.

Formulas: Su et al. 2021 (RoPE), Llama 3.1's smoothed frequencies, Peng et al. 2023 (YaRN).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.rope import RopeKind, RopeScaling


class RotaryTable:
    """Cosines and sines of every position up to `positions`, [positions, head_dim]."""

    def __init__(
        self, config: ModelConfig, positions: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        frequencies = _inverse_frequencies(config)
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        factor = config.rope_scaling.attention_factor
        sines = angles.sin() * factor
        # The first half of a rotated vector takes minus the second half: fold the sign in here.
        sines[:, : config.head_dim // 2].neg_()
        self._cos = (angles.cos() * factor).to(device, dtype)
        self._sin = sines.to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [tokens, head_dim] of some positions."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


def _inverse_frequencies(config: ModelConfig) -> Tensor:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    match scaling.kind:
        case RopeKind.NONE:
            return plain
        case RopeKind.LINEAR:
            return plain / scaling.factor
        case RopeKind.LLAMA3:
            return _llama3(plain, scaling)
        case RopeKind.YARN:
            return _yarn(plain, scaling, config=config)
        case RopeKind.DYNAMIC:
            raise ModelError(
                "rope type 'dynamic' changes every cached key as a text grows, which a paged "
                "cache cannot follow; supported: default, linear, llama3, yarn"
            )


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    wavelengths = 2 * math.pi / plain
    low = scaling.original_positions / scaling.low_freq_factor
    high = scaling.original_positions / scaling.high_freq_factor
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (scaling.original_positions / wavelengths - scaling.low_freq_factor) / span
    between = (1 - smooth) * plain / scaling.factor + smooth * plain
    stretched = torch.where(wavelengths > low, plain / scaling.factor, plain)
    is_between = (wavelengths <= low) & (wavelengths >= high)
    return torch.where(is_between, between, stretched)


def _yarn(plain: Tensor, scaling: RopeScaling, *, config: ModelConfig) -> Tensor:
    dim, base = config.head_dim, config.rope_theta

    def dimension_of(rotations: float) -> float:
        ratio = scaling.original_positions / (rotations * 2 * math.pi)
        return dim * math.log(ratio) / (2 * math.log(base))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp)
