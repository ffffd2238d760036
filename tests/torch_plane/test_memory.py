# SPDX-License-Identifier: MIT
"""Memory that is released is really gone, and what comes back is what was there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from operator import sub
from pathlib import Path

import psutil
import pytest
from safetensors.torch import save

from tokenspeed_core.errors import EngineError
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.tiny_model import TinyModel, tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup

MakeEngine = Callable[..., TorchEngine]
PROMPT = [(7 * i) % 290 for i in range(70)]
MIB = 1 << 20
PROMPT_LEN, NUM_PROMPTS = 900, 8
every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def said(engine: TorchEngine, name: str) -> list[int]:
    """The model's greedy answer to the prompt; a name is used once."""
    asked = request(name, PROMPT, budget=24, temperature=0.0, ignore_eos=True)
    return engine.generate([asked])[0].tokens


def resident() -> float:
    """This process's resident memory in MiB."""
    return int(psutil.Process().memory_info().rss) / MIB


def fill_pages(engine: TorchEngine, turn: int) -> None:
    """Put prompts without a common beginning into the cache."""
    prompts = [[(n + i) % 20_000 for i in range(PROMPT_LEN)] for n in range(NUM_PROMPTS)]
    engine.generate([request(f"{turn}-{n}", p, budget=1) for n, p in enumerate(prompts)])


def test_a_release_gives_the_memory_back_to_the_system() -> None:
    """Resident memory falls by weights and used pages, and by as much every time."""
    wide = {"vocab_size": 20_000, "hidden_size": 256, "intermediate_size": 2048}
    model = tiny_model(**wide, num_attention_heads=4, num_key_value_heads=4, head_dim=64)
    weights = sum(tensor.nbytes for tensor in model.weights.tensors.values()) / MIB
    pages = NUM_PROMPTS * PROMPT_LEN * 2 * 2 * 4 * 64 * 4 / MIB
    high, low = [], []
    with TorchEngine(TorchSetup(model=model, engine={"threads": 1})) as engine:
        for turn in range(3):
            fill_pages(engine, turn)
            high.append(resident())
            assert engine.ask("release_memory").success
            low.append(resident())
            assert engine.ask("resume_memory").success
    measured = f"weights {weights:.0f}, pages {pages:.0f}, resident {high} -> {low} MiB"
    assert weights > 50, measured
    assert pages > 25, measured
    assert min(map(sub, high, low)) > 0.9 * (weights + pages), measured
    assert max(low) - min(low) < 0.5 * weights, measured


@every_dtype
def test_after_a_resume_the_engine_says_the_same(start_engine: MakeEngine, dtype: str) -> None:
    """Weights and pages are usable as before, several times over."""
    engine = start_engine(engine={"threads": 1, "dtype": dtype})
    before = said(engine, "a")
    for turn in range(3):
        assert engine.ask("release_memory").success
        assert engine.ask("resume_memory").success
        assert said(engine, f"b{turn}") == before


@pytest.mark.parametrize("region", ["kv_cache", "weights"])
def test_either_region_alone_can_be_released(start_engine: MakeEngine, region: str) -> None:
    """One region goes and comes back while the other stays."""
    engine = start_engine()
    before = said(engine, "a")
    engine.ask("release_memory", tags=[region])
    engine.ask("resume_memory", tags=[region])
    assert said(engine, "b") == before


def test_prefixes_on_the_host_outlive_a_release(start_engine: MakeEngine) -> None:
    """Pages that were written back are loaded again after the device's are gone."""
    engine = start_engine(scheduler={"host_pages": 129})
    before = said(engine, "a")
    engine.ask("release_memory")
    engine.ask("resume_memory")
    asked = request("b", PROMPT, budget=24, temperature=0.0, ignore_eos=True)
    stream = engine.generate([asked])[0]
    assert stream.tokens == before
    assert stream.chunks[-1].cached_tokens >= 64


@every_dtype
def test_replaced_weights_come_back(
    start_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """What was updated at run time is kept over a release, in a file that is removed again."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = start_engine(engine={"threads": 1, "dtype": dtype})
    other = save(dict(tiny_model(5).weights.tensors))
    engine.ask("update_weights_from_tensor", serialized_named_tensors=other)
    before = said(engine, "a")
    engine.ask("release_memory")
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1
    engine.ask("resume_memory")
    assert said(engine, "b") == before
    assert list(tmp_path.iterdir()) == []


def test_weights_can_be_replaced_while_the_cache_is_gone(
    start_engine: MakeEngine, tmp_path: Path
) -> None:
    """Release both, resume the weights, update them, resume the cache: a trainer's order."""
    other = tiny_model(5)
    expected = said(start_engine(model=other), "x")
    engine = start_engine()
    said(engine, "a")
    engine.ask("release_memory")
    engine.ask("resume_memory", tags=["weights"])
    reply = engine.ask("update_weights_from_disk", model_path=other.save(tmp_path / "other"))
    assert reply.success, reply.message
    engine.ask("resume_memory", tags=["kv_cache"])
    assert said(engine, "b") == expected


def test_released_weights_cannot_be_updated(start_engine: MakeEngine, tiny: TinyModel) -> None:
    """An update is refused while there is nothing to update."""
    engine = start_engine()
    engine.ask("release_memory", tags=["weights"])
    tensors = save(dict(tiny.weights.tensors))
    reply = engine.ask("update_weights_from_tensor", serialized_named_tensors=tensors)
    assert not reply.success
    assert "resume it before an update" in reply.message


def test_no_room_for_replaced_weights_is_said(
    start_engine: MakeEngine, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that could not keep the weights fails and names the place."""
    engine = start_engine()
    tensors = save(dict(tiny.weights.tensors))
    engine.ask("update_weights_from_tensor", serialized_named_tensors=tensors)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    with pytest.raises(EngineError, match="TMPDIR"):
        engine.rank.data_plane.release_memory(["weights"])
