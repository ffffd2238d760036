# SPDX-License-Identifier: MIT
"""A config.json is read exactly, or refused by field, value and choices."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import transformers

from tokenspeed_core.models.config import Architecture, parse_config, read_config
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.rope import RopeKind, RopeScaling

Fields = dict[str, object]


def test_shape_is_read(llama_fields: Fields) -> None:
    """Every number of the file ends up under its own name."""
    config = parse_config(llama_fields | {"torch_dtype": "bfloat16"})
    assert config.architecture is Architecture.LLAMA
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (64, 96, 2)
    assert (config.vocab_size, config.max_position_embeddings) == (262, 128)
    assert (config.rms_norm_eps, config.rope_theta) == (1e-5, 10000.0)
    assert (config.dtype, config.bos_token_id, config.eos_token_ids) == ("bfloat16", 260, (261,))
    assert config.rope_scaling == RopeScaling()


FAMILIES = [
    ("LlamaForCausalLM", {}, (False, False, False)),
    ("LlamaForCausalLM", {"attention_bias": True}, (True, True, False)),
    ("Qwen2ForCausalLM", {}, (True, False, False)),
    ("Qwen3ForCausalLM", {}, (False, False, True)),
    ("Qwen3ForCausalLM", {"attention_bias": True}, (True, True, True)),
]


@pytest.mark.parametrize(("name", "changes", "expected"), FAMILIES)
def test_family_decides_biases_and_norms(
    llama_fields: Fields, name: str, changes: Fields, expected: tuple[bool, bool, bool]
) -> None:
    """Qwen2 always has q, k, v biases and never one on o; Qwen3 normalises q and k."""
    config = parse_config(llama_fields | {"architectures": [name]} | changes)
    assert (config.attention_bias, config.attention_output_bias, config.qk_norm) == expected


@pytest.mark.parametrize(
    ("config_class", "architecture"),
    [
        (transformers.LlamaConfig, Architecture.LLAMA),
        (transformers.Qwen2Config, Architecture.QWEN2),
        (transformers.Qwen3Config, Architecture.QWEN3),
    ],
)
def test_full_dumps_are_accepted(
    config_class: type[transformers.PretrainedConfig], architecture: Architecture
) -> None:
    """A file with every default of transformers written out holds nothing we refuse."""
    theirs = config_class(vocab_size=200_000)
    ours = parse_config(theirs.to_dict())
    assert ours.architecture is architecture
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.num_kv_heads == theirs.num_key_value_heads


def test_qwen3_head_size_defaults_to_its_own(llama_fields: Fields) -> None:
    """Without head_dim a Qwen3 head has 128 values, a Llama head an even share."""
    del llama_fields["head_dim"]
    assert parse_config(llama_fields).head_dim == 16
    assert parse_config(llama_fields | {"architectures": ["Qwen3ForCausalLM"]}).head_dim == 128


def test_ends_come_from_both_files(llama_fields: Fields) -> None:
    """The end ids of generation_config.json stand first, those of config.json are added."""
    config = parse_config(llama_fields, {"eos_token_id": [7, 261, 9]})
    assert config.eos_token_ids == (7, 261, 9)
    assert parse_config(llama_fields, {"eos_token_id": 5}).eos_token_ids == (5, 261)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPES = [
    ({"rope_type": "default"}, RopeScaling()),
    ({"type": "linear", "factor": 2.0}, RopeScaling(kind=RopeKind.LINEAR, factor=2.0)),
    (
        {"rope_type": "dynamic", "factor": 2.0},
        RopeScaling(kind=RopeKind.DYNAMIC, factor=2.0, original_positions=128),
    ),
    (
        {"rope_type": "llama3", **LLAMA3},
        RopeScaling(kind=RopeKind.LLAMA3, factor=8.0, original_positions=64),
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        RopeScaling(
            kind=RopeKind.YARN,
            factor=4.0,
            original_positions=32,
            attention_factor=0.1 * math.log(4.0) + 1.0,
        ),
    ),
]


@pytest.mark.parametrize(("fields", "expected"), ROPES)
def test_rope_scaling_is_read_in_both_forms(
    llama_fields: Fields, fields: Fields, expected: RopeScaling
) -> None:
    """The old rope_scaling and the new rope_parameters give the same record."""
    old = parse_config(llama_fields | {"rope_scaling": fields})
    new = parse_config(llama_fields | {"rope_parameters": {**fields, "rope_theta": 10000.0}})
    assert old.rope_scaling == new.rope_scaling == expected
    assert old.rope_theta == new.rope_theta


def test_yarn_attention_factor_includes_mscale(llama_fields: Fields) -> None:
    """With both mscale fields the factor is the quotient of their scales."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}
    found = parse_config(llama_fields | {"rope_scaling": scaling}).rope_scaling
    top, bottom = 0.1 * math.log(4) + 1, 0.05 * math.log(4) + 1
    assert found.attention_factor == pytest.approx(top / bottom, rel=1e-12)


REFUSED = [
    ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not supported, only Llama"),
    ({"architectures": None, "model_type": "gpt2"}, "model_type = 'gpt2'"),
    ({"hidden_act": "gelu"}, "hidden_act = 'gelu'; expected 'silu'"),
    ({"rope_scaling": {"type": "longrope", "factor": 2}}, "rope_type = 'longrope'; expected one"),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3}}, "beta_fast = 3"),
    ({"use_sliding_window": True}, "use_sliding_window = True"),
    ({"sliding_window": 4096}, "sliding_window = 4096"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ({"logits_scaling": 8.0}, "logits_scaling = 8.0; expected no such field"),
    ({"pretraining_tp": 2}, "pretraining_tp = 2"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ({"vocab_size": None}, "vocab_size is missing"),
    ({"hidden_size": "64"}, "hidden_size = '64'; expected an integer"),
    ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    ({"rms_norm_eps": math.inf}, "rms_norm_eps = inf"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings = 1; expected true or false"),
    ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads = 3"),
    ({"head_dim": 15}, "head_dim = 15 is odd"),
    ({"eos_token_id": 262}, "token id 262 is outside vocab_size = 262"),
    ({"eos_token_id": [1, "x"]}, "eos_token_id"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_unsupported_fields_are_named(llama_fields: Fields, changes: Fields, message: str) -> None:
    """A field we cannot honour is refused with its name and value."""
    with pytest.raises(ModelError) as caught:
        parse_config(llama_fields | changes, where="the config")
    assert message in str(caught.value)
    assert "the config" in str(caught.value)


def test_all_problems_come_at_once(llama_fields: Fields) -> None:
    """One error lists every bad field."""
    with pytest.raises(ModelError) as caught:
        parse_config(llama_fields | {"hidden_act": "relu", "vocab_size": -1, "alibi": True})
    lines = str(caught.value).splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["hidden_act", "vocab_size", "alibi"]


def test_harmless_fields_are_ignored(llama_fields: Fields) -> None:
    """Fields without a say in the forward pass, and unknown ones that are off, change nothing."""
    extra = {"_name": "x", "use_cache": True, "attention_dropout": 0.1, "new_trick": False}
    assert parse_config(llama_fields | extra) == parse_config(llama_fields)


def test_qwen_window_counts_only_when_used(llama_fields: Fields) -> None:
    """Qwen2 files name a window size they do not use."""
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096}
    parse_config(llama_fields | qwen | {"use_sliding_window": False})


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_broken_file_is_named(tmp_path: Path, content: str) -> None:
    """A config.json that is no JSON object is named."""
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A folder without config.json is named."""
    with pytest.raises(ModelError, match=r"cannot read .*config\.json"):
        read_config(tmp_path)
