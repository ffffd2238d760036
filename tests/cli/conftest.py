# SPDX-License-Identifier: MIT
"""A whole little model on disk: random weights, and a tokenizer with a token a byte."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from attrs import frozen
from safetensors.torch import save_file

from tokenspeed_core.cli.main import main
from tokenspeed_core.models.token_bytes import byte_characters
from tokenspeed_core.testing.tiny_model import TINY_FIELDS, tiny_model

TEMPLATE = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '\\n' }}{% endfor %}"


@frozen
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


RunCommand = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Run `tokenspeed` with these arguments, and this on its standard input."""

    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(arguments)
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says anything, and quickly."""
    folder = tmp_path_factory.mktemp("model")
    save_file(dict(tiny_model().weights.tensors), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**TINY_FIELDS, "model_type": "llama"}))
    settings = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    _tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def engine_flags(model_folder: Path) -> list[str]:
    """The flags of an engine that runs the little model."""
    return ["--model", str(model_folder), "--page-size", "16", "--threads", "1"]


def _tokenizer() -> tokenizers.Tokenizer:
    vocabulary = {character: index for index, character in enumerate(byte_characters())}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer
