# SPDX-License-Identifier: MIT
"""Which tensors a decoder of a given shape has, and how they differ from those found."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.models.errors import ModelError, bullet_list

Shape = tuple[int, ...]

LAYER = re.compile(r"^model\.layers\.(\d+)\.(.+)$")


def expected_weights(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of every tensor the decoder needs, by Hugging Face names."""
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        for name, shape in _layer_weights(config):
            shapes[f"model.layers.{layer}.{name}"] = shape
    return shapes


def check_weights(config: ModelConfig, found: Mapping[str, Shape], *, where: str) -> None:
    """Raise one ModelError that names every missing, unexpected and wrongly shaped tensor."""
    missing = [name for name in expected_weights(config) if name not in found]
    problems = [f"missing: {line}" for line in _folded(missing)]
    _report([*problems, *_misfits(config, found)], config, where=where)


def check_some_weights(config: ModelConfig, found: Mapping[str, Shape], *, where: str) -> None:
    """Raise one ModelError that names every unexpected and wrongly shaped tensor."""
    _report(_misfits(config, found), config, where=where)


def _misfits(config: ModelConfig, found: Mapping[str, Shape]) -> list[str]:
    wanted = expected_weights(config)
    unexpected = [name for name in found if name not in wanted and not _is_harmless(name, config)]
    misshapen: dict[str, list[str]] = defaultdict(list)
    for name, shape in wanted.items():
        if name in found and found[name] != shape:
            misshapen[f"shape {found[name]}, expected {shape}"].append(name)
    problems = [f"unexpected: {line}" for line in _folded(unexpected)]
    for complaint, names in misshapen.items():
        problems += [f"{complaint}: {line}" for line in _folded(names)]
    return problems


def _report(problems: Sequence[str], config: ModelConfig, *, where: str) -> None:
    if problems:
        headline = f"{where}: the weights do not fit the config ({config.architecture.value})"
        raise ModelError(bullet_list(headline, problems))


def _layer_weights(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    linears = [
        ("self_attn.q_proj", queries, hidden, config.attention_bias),
        ("self_attn.k_proj", keys, hidden, config.attention_bias),
        ("self_attn.v_proj", keys, hidden, config.attention_bias),
        ("self_attn.o_proj", hidden, queries, config.attention_output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ]
    for name, out, into, has_bias in linears:
        yield f"{name}.weight", (out, into)
        if has_bias:
            yield f"{name}.bias", (out,)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)


def _is_harmless(name: str, config: ModelConfig) -> bool:
    """Old files carry the rotary table, and tied ones sometimes a second copy of the head."""
    tied_copy = name == "lm_head.weight" and config.tie_word_embeddings
    return tied_copy or name.endswith("rotary_emb.inv_freq")


def _folded(names: Iterable[str]) -> list[str]:
    """Write the same tensor of several layers as one line."""
    layers: dict[str, list[int]] = defaultdict(list)
    lines = []
    for name in names:
        if match := LAYER.match(name):
            layers[match[2]].append(int(match[1]))
        else:
            lines.append(name)
    for rest, numbers in layers.items():
        lines.append(f"model.layers.{{{_ranges(sorted(numbers))}}}.{rest}")
    return lines


def _ranges(numbers: list[int]) -> str:
    """Write [0, 1, 2, 5] as '0-2,5'."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
