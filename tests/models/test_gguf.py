# SPDX-License-Identifier: MIT
"""GGUF files become model folders that compute the same, or one clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.models.rope import RopeKind

MakeGguf = Callable[..., Path]
MakeModel = Callable[..., transformers.PreTrainedModel]
Family = tuple[
    type[transformers.PretrainedConfig], type[transformers.PreTrainedModel], dict[str, object]
]

FAMILIES: list[Family] = [
    (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"tie_word_embeddings": True}),
    (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {}),
    (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {}),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_converted_model_computes_the_same(
    make_gguf: MakeGguf, random_model: MakeModel, tmp_path: Path, family: Family
) -> None:
    """A converted folder loads with transformers and gives the original's logits exactly."""
    config_class, model_class, changes = family
    model = random_model(config_class, model_class, **changes)
    found = resolve_model(str(make_gguf(model)), root=tmp_path / "cache")
    copy = model_class.from_pretrained(found.path, dtype=torch.float32)
    ids = torch.arange(1, 40)[None]
    with torch.no_grad():
        assert torch.equal(copy(ids).logits, model(ids).logits)
    found.open_weights()


def test_quantised_weights_are_dequantised(
    make_gguf: MakeGguf, random_model: MakeModel, tmp_path: Path
) -> None:
    """Q8_0 weights come out as bfloat16, within a hundredth of the largest value."""
    model = random_model()
    path = make_gguf(model, kind=gguf.GGMLQuantizationType.Q8_0)
    found = resolve_model(str(path), root=tmp_path / "cache")
    weights = found.open_weights()
    assert found.config.dtype == "bfloat16"
    for name, original in model.state_dict().items():
        error = (weights.load(name).float() - original).abs().max()
        assert error <= 0.01 * original.abs().max()


def test_half_precision_is_kept(make_gguf: MakeGguf, tmp_path: Path) -> None:
    """A float16 file stays float16, because bfloat16 would lose bits of it."""
    path = make_gguf(kind=gguf.GGMLQuantizationType.F16)
    assert resolve_model(str(path), root=tmp_path / "cache").config.dtype == "float16"


def test_tokenizer_and_template_come_along(make_gguf: MakeGguf, tmp_path: Path) -> None:
    """Vocabulary, merges, special tokens and chat template of the file are usable."""
    tokenizer = resolve_model(str(make_gguf()), root=tmp_path / "cache").load_tokenizer()
    ids = tokenizer.encode_chat([{"role": "user", "content": "in the"}])
    assert [ids[0], ids[-2], ids[-1]] == [260, 258, 261]
    assert tokenizer.decode(ids) == "in the"


def test_start_token_is_added_when_asked_for(make_gguf: MakeGguf, tmp_path: Path) -> None:
    """A file that wants its start token in front of every text gets it."""
    path = make_gguf(settings={"tokenizer.ggml.add_bos_token": 1})
    tokenizer = resolve_model(str(path), root=tmp_path / "cache").load_tokenizer()
    assert tokenizer.encode("the") == [260, 257]
    assert tokenizer.encode("the", add_special=False) == [257]


def test_several_ends_are_kept(make_gguf: MakeGguf, tmp_path: Path) -> None:
    """The end of a turn counts as an end beside the end of text."""
    path = make_gguf(settings={"tokenizer.ggml.eot_token_id": 260})
    config = resolve_model(str(path), root=tmp_path / "cache").config
    assert config.eos_token_ids == (261, 260)


def test_rope_scaling_is_read(make_gguf: MakeGguf, tmp_path: Path) -> None:
    """Linear stretching of the file reaches the config."""
    settings = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    config = resolve_model(str(make_gguf(settings=settings)), root=tmp_path / "cache").config
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == (RopeKind.LINEAR, 4.0)


def test_llama3_factors_become_settings(make_gguf: MakeGguf, tmp_path: Path) -> None:
    """The table of rotary factors of a Llama 3 file gives back the settings it was made from."""
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = transformers.LlamaConfig(head_dim=16, rope_theta=5e5, rope_scaling=scaling)
    plain = 5e5 ** (-torch.arange(8) / 8)
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    table = {"rope_freqs.weight": (plain / stretched).numpy()}
    path = make_gguf(extra=table, settings={"llama.rope.freq_base": 5e5})
    found = resolve_model(str(path), root=tmp_path / "cache").config.rope_scaling
    assert (found.kind, found.factor, found.original_positions) == (RopeKind.LLAMA3, 32.0, 8192)


def test_other_factor_tables_are_refused(make_gguf: MakeGguf, tmp_path: Path) -> None:
    """A table of rotary factors that no known setting gives stops the conversion."""
    path = make_gguf(extra={"rope_freqs.weight": np.linspace(1, 9, 8, dtype=np.float32)})
    with pytest.raises(ModelError, match="table of rotary factors"):
        resolve_model(str(path), root=tmp_path / "cache")


def test_tensors_of_other_models_are_named(make_gguf: MakeGguf, tmp_path: Path) -> None:
    """A tensor no supported decoder has is named."""
    path = make_gguf(extra={"blk.0.ffn_gate_inp.weight": np.zeros((4, 4), dtype=np.float32)})
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_gate_inp\.weight"):
        resolve_model(str(path), root=tmp_path / "cache")


REFUSED = [
    ({"llama.logit_scale": 2.0}, "llama.logit_scale = 2.0"),
    ({"llama.attention.sliding_window": 64}, "llama.attention.sliding_window = 64"),
    ({"llama.rope.dimension_count": 8}, "rope.dimension_count = 8"),
    ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "longrope"),
    ({"llama.block_count": 3}, "missing: model.layers.{2}.mlp.gate_proj.weight"),
    ({"tokenizer.ggml.pre": "chameleon"}, "word rule 'chameleon'"),
    ({"tokenizer.ggml.model": "t5"}, "tokenizer 't5'"),
    ({"tokenizer.ggml.merges": ["t q"]}, "merges do not fit"),
    ({"general.architecture": "gemma"}, "architecture 'gemma' is not supported"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_unknown_maths_is_refused(
    make_gguf: MakeGguf, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    """What cannot be carried over exactly stops the conversion by name, and leaves nothing."""
    path = make_gguf(settings=settings)
    with pytest.raises(ModelError, match=r"tiny\.gguf") as caught:
        resolve_model(str(path), root=tmp_path / "cache")
    assert message in str(caught.value)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@pytest.mark.parametrize("kept", [0, 3, 4, 100, 3000, 20_000, -1])
def test_cut_short_file_is_one_error(make_gguf: MakeGguf, tmp_path: Path, kept: int) -> None:
    """A file that ends anywhere too early is named as not whole."""
    path = make_gguf()
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"tiny\.gguf is not a whole GGUF file"):
        resolve_model(str(path), root=tmp_path / "cache")


def test_converted_once(make_gguf: MakeGguf, tmp_path: Path) -> None:
    """An unchanged file is converted once; a changed one again."""
    path = make_gguf()
    first = resolve_model(str(path), root=tmp_path / "cache").path
    assert resolve_model(str(path), root=tmp_path / "cache").path == first
    changed = make_gguf(settings={"llama.context_length": 256})
    assert resolve_model(str(changed), root=tmp_path / "cache").path != first
