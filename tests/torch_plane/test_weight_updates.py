# SPDX-License-Identifier: MIT
"""New weights at run time: the new model's tokens exactly, or nothing is changed and why."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file

from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.tiny_model import TinyModel, tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine
from tokenspeed_hookspecs import ControlReply

MakeEngine = Callable[..., TorchEngine]
Tensors = dict[str, torch.Tensor]
PICKLED = b"\x80\x04\x95\n\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s."
PROMPT = [(7 * i) % 290 for i in range(70)]
QWEN: Mapping[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
QWEN3: Mapping[str, Any] = {"architectures": ["Qwen3ForCausalLM"]}
FAMILIES = pytest.mark.parametrize("fields", [{}, QWEN, QWEN3], ids=["llama", "qwen2", "qwen3"])
every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def said(engine: TorchEngine) -> list[int]:
    """The model's greedy answer to the prompt."""
    name = f"r{len(engine.frontend.received.ids())}"
    asked = request(name, PROMPT, budget=24, temperature=0.0, ignore_eos=True)
    return engine.generate([asked])[0].tokens


def update(engine: TorchEngine, tensors: Tensors) -> ControlReply:
    """Hand tensors over as a safetensors file's bytes."""
    return engine.ask("update_weights_from_tensor", serialized_named_tensors=save(tensors))


def mixed(base: TinyModel, other: TinyModel, *names: str) -> TinyModel:
    """A model with the named tensors of the other."""
    new = {name: other.weights.tensors[name] for name in names}
    return base.with_tensors({**base.weights.tensors, **new})


@every_dtype
@FAMILIES
def test_weights_from_disk_are_those_of_a_fresh_engine(
    start_engine: MakeEngine, tmp_path: Path, *, fields: Mapping[str, Any], dtype: str
) -> None:
    """After an update the tokens are those of an engine that began with the new model."""
    old, new = tiny_model(1, **fields), tiny_model(2, **fields)
    options = {"threads": 1, "dtype": dtype}
    expected = said(start_engine(model=new, engine=options))
    engine = start_engine(model=old, engine=options)
    assert said(engine) != expected
    reply = engine.ask("update_weights_from_disk", model_path=new.save(tmp_path / "new"))
    assert reply.success, reply.message
    assert said(engine) == expected


@pytest.mark.parametrize(
    "names",
    [
        ["model.layers.1.self_attn.k_proj.weight"],
        ["model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"],
        ["model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.v_proj.bias"],
        ["model.embed_tokens.weight"],
        ["model.layers.1.input_layernorm.weight", "model.norm.weight"],
    ],
    ids=lambda names: names[0],
)
@every_dtype
def test_some_tensors_can_be_replaced(
    start_engine: MakeEngine, names: list[str], *, dtype: str
) -> None:
    """Parts of fused projections, a tied embedding, biases and norms: the others stay."""
    old, new = tiny_model(1, **QWEN), tiny_model(2, **QWEN)
    options = {"threads": 1, "dtype": dtype}
    expected = said(start_engine(model=mixed(old, new, *names), engine=options))
    engine = start_engine(model=old, engine=options)
    before = said(engine)
    reply = update(engine, {name: new.weights.tensors[name] for name in names})
    assert reply.success, reply.message
    assert said(engine) == expected != before


def test_updates_add_up(start_engine: MakeEngine, tiny: TinyModel) -> None:
    """One tensor after another, in bf16 and as text, ends in the whole new model."""
    new = tiny_model(2)
    engine = start_engine()
    for name, tensor in new.weights.tensors.items():
        text = base64.b64encode(save({name: tensor})).decode()
        reply = engine.ask("update_weights_from_tensor", serialized_named_tensors=[text])
        assert reply.message == "replaced 1 tensors"
    assert said(engine) == said(start_engine(model=new))


@every_dtype
def test_an_update_does_not_touch_what_was_handed_in(
    start_engine: MakeEngine, tmp_path: Path, dtype: str
) -> None:
    """The tensors an engine was started with are not written to by updates."""
    model = tiny_model(1, **QWEN)
    before = {name: tensor.clone() for name, tensor in model.weights.tensors.items()}
    engine = start_engine(model=model, engine={"threads": 1, "dtype": dtype})
    other = dict(tiny_model(2, **QWEN).weights.tensors)
    for part in ("q_proj", "norm", "embed"):
        assert update(engine, {n: t for n, t in other.items() if part in n}).success
    assert all(torch.equal(before[name], now) for name, now in model.weights.tensors.items())


def without_a_tensor(folder: Path, tensors: Tensors, fields: dict[str, Any]) -> None:
    """A tensor is missing."""
    del tensors["model.layers.1.mlp.up_proj.weight"]


def with_a_shape(folder: Path, tensors: Tensors, fields: dict[str, Any]) -> None:
    """A tensor is turned around."""
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(64, 96)


def of_another_shape(folder: Path, tensors: Tensors, fields: dict[str, Any]) -> None:
    """The config is another model's."""
    fields["intermediate_size"] = 128


def cut_short(folder: Path, tensors: Tensors, fields: dict[str, Any]) -> None:
    """The file is to be cut."""
    fields["cut"] = True


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_a_tensor, "missing: model.layers.{1}.mlp.up_proj.weight"),
        (with_a_shape, "shape (64, 96), expected (96, 64)"),
        (of_another_shape, "intermediate_size: 128, running 96"),
        (cut_short, "not a whole safetensors file"),
    ],
)
def test_a_folder_that_does_not_fit_changes_nothing(
    start_engine: MakeEngine,
    tmp_path: Path,
    *,
    damage: Callable[[Path, Tensors, dict[str, Any]], None],
    message: str,
) -> None:
    """The reply says what is wrong with it, and the old weights go on."""
    engine = start_engine()
    before = said(engine)
    tensors, fields = dict(tiny_model(2).weights.tensors), dict(tiny_model(2).fields)
    damage(tmp_path, tensors, fields)
    is_cut = fields.pop("cut", False)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    file.write_bytes(file.read_bytes()[: -100 if is_cut else None])
    reply = engine.ask("update_weights_from_disk", model_path=str(tmp_path))
    assert not reply.success
    assert message in reply.message
    assert said(engine) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model_path": "./nowhere"}, "no such file or folder"),
        ({"model_path": ""}, "unknown model"),
        ({"model_path": "\0"}, "unknown model"),
        ({}, "model_path"),
        ({"model_path": 7}, "Expected `str`, got `int`"),
        ({"model_path": "smollm2-135m", "load_format": "dummy"}, "expected auto or safetensors"),
    ],
)
def test_orders_without_a_model_are_refused(
    start_engine: MakeEngine, *, arguments: dict[str, Any], message: str
) -> None:
    """A model that is not there, and arguments of the wrong kind."""
    reply = start_engine().ask("update_weights_from_disk", **arguments)
    assert not reply.success
    assert message in reply.message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (PICKLED, "pickled tensors are not read"),
        (b"", "not a whole safetensors file"),
        (save({}), "at least one tensor"),
        (save({"model.wrong": torch.zeros(2)}), "unexpected: model.wrong"),
        (save({"model.norm.weight": torch.zeros(3)}), "shape (3,), expected (64,)"),
        (save({"model.norm.weight": torch.zeros(64).int()}), "torch.int32"),
        ("%%%", "base64"),
        ([b"", b""], "one entry"),
        (7, "got int"),
        (None, "missing required field"),
    ],
    ids=repr,
)
def test_tensors_that_do_not_fit_change_nothing(
    start_engine: MakeEngine, given: object, message: str
) -> None:
    """The reply says what is wrong, and the old weights go on."""
    engine = start_engine()
    before = said(engine)
    reply = engine.ask("update_weights_from_tensor", serialized_named_tensors=given)
    assert not reply.success
    assert message in reply.message
    assert said(engine) == before
