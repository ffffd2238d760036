# SPDX-License-Identifier: MIT
"""Weights fit the config, or one error lists all that does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tokenspeed_core.models.config import ModelConfig, read_config
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.expected_weights import expected_weights
from tokenspeed_core.models.safetensors_file import write_safetensors
from tokenspeed_core.models.weights import TensorWeights, open_weights

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def config(llama_folder: Path) -> ModelConfig:
    """The little folder's shape."""
    return read_config(llama_folder)


@pytest.fixture
def tensors(llama_folder: Path) -> Tensors:
    """The little folder's weights."""
    return load_file(llama_folder / "model.safetensors")


def test_single_file_is_opened(llama_folder: Path, config: ModelConfig, tensors: Tensors) -> None:
    """Names and shapes are known at once, and a tensor comes in its stored dtype."""
    tensors["model.norm.weight"] = torch.arange(64, dtype=torch.bfloat16)
    save_file(tensors, llama_folder / "model.safetensors")
    weights = open_weights(llama_folder, config)
    assert weights.shapes == expected_weights(config)
    assert torch.equal(weights.load("model.norm.weight"), tensors["model.norm.weight"])


def split_in_two(folder: Path, tensors: Tensors) -> dict[str, str]:
    """Write the tensors as two files with an index."""
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for number, part in ((1, names[::2]), (2, names[1::2])):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


def test_sharded_files_are_opened(
    llama_folder: Path, config: ModelConfig, tensors: Tensors
) -> None:
    """All files named by an index together make the weights."""
    tensors["lm_head.weight"] += 3
    split_in_two(llama_folder, tensors)
    weights = open_weights(llama_folder, config)
    assert weights.shapes == expected_weights(config)
    assert torch.equal(weights.load("lm_head.weight"), tensors["lm_head.weight"])


def test_missing_shard_is_named(llama_folder: Path, config: ModelConfig, tensors: Tensors) -> None:
    """A file the index names and the folder lacks is named."""
    split_in_two(llama_folder, tensors)
    (llama_folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors"):
        open_weights(llama_folder, config)


def test_index_stays_in_its_folder(llama_folder: Path, config: ModelConfig) -> None:
    """An index cannot point outside the model's folder."""
    index = llama_folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../x.safetensors"}}))
    with pytest.raises(ModelError, match="must not leave the folder"):
        open_weights(llama_folder, config)


def test_misfits_are_listed_together(
    llama_folder: Path, config: ModelConfig, tensors: Tensors
) -> None:
    """Missing, unexpected and wrongly shaped tensors stand in one error, layers folded."""
    for layer in range(2):
        del tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
    tensors["model.layers.1.self_attn.q_norm.weight"] = torch.zeros(16)
    tensors["model.norm.weight"] = torch.zeros(63)
    save_file(tensors, llama_folder / "model.safetensors")
    with pytest.raises(ModelError) as caught:
        open_weights(llama_folder, config)
    assert str(caught.value).splitlines()[1:] == [
        "  - missing: model.layers.{0-1}.mlp.up_proj.weight",
        "  - unexpected: model.layers.{1}.self_attn.q_norm.weight",
        "  - shape (63,), expected (64,): model.norm.weight",
    ]


def test_leftovers_of_old_files_are_accepted(
    llama_folder: Path, config: ModelConfig, tensors: Tensors
) -> None:
    """A stored rotary table is no misfit."""
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, llama_folder / "model.safetensors")
    open_weights(llama_folder, config)


@pytest.mark.parametrize("kept", [0, 7, 500, -1])
def test_cut_short_file_is_named(llama_folder: Path, config: ModelConfig, kept: int) -> None:
    """A file that ends too early anywhere is named before anything is loaded."""
    path = llama_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors is not a whole safetensors file"):
        open_weights(llama_folder, config)


def test_integer_weights_are_refused(
    llama_folder: Path, config: ModelConfig, tensors: Tensors
) -> None:
    """Weights of a type the decoder cannot take are named with their type."""
    tensors["model.norm.weight"] = torch.zeros(64, dtype=torch.int8)
    save_file(tensors, llama_folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight is I8"):
        open_weights(llama_folder, config)


def test_pickles_are_not_read(llama_folder: Path, config: ModelConfig) -> None:
    """A folder with pickled weights only is refused, saying why."""
    (llama_folder / "model.safetensors").rename(llama_folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickles can run code"):
        open_weights(llama_folder, config)


def test_opening_imports_no_torch(llama_folder: Path) -> None:
    """Config, names and shapes are read without importing torch."""
    program = (
        "import sys; from pathlib import Path\n"
        "from tokenspeed_core.models.resolve import resolve_model\n"
        "resolve_model(sys.argv[1]).open_weights()\n"
        "assert 'torch' not in sys.modules and 'gguf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(llama_folder)], check=True)


def test_memory_is_a_source_too(tensors: Tensors) -> None:
    """Tensors in memory serve as weights."""
    weights = TensorWeights(tensors)
    assert weights.shapes["model.norm.weight"] == (64,)
    assert weights.load("model.norm.weight") is tensors["model.norm.weight"]


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)],
)
def test_written_files_round_as_torch_does(tmp_path: Path, stored: str, dtype: torch.dtype) -> None:
    """Our writer's bytes are those torch stores, ties to even included."""
    ties = torch.tensor([1.00390625, 1.01171875, -1.00390625, 0.0, -0.0, 65504.0])
    tensor = torch.cat([ties, torch.randn(1000, generator=torch.Generator().manual_seed(0))])
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"a": tensor.shape}, tensors=[("a", tensor.numpy())], dtype=stored)
    assert torch.equal(load_file(path)["a"], tensor.to(dtype))
