# SPDX-License-Identifier: MIT
"""Whatever is asked for wrongly: one clear error, exit code 2, no traceback."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

BAD: dict[str, tuple[list[str], str]] = {
    "command": (["genrate"], "unknown command 'genrate'; did you mean 'generate'?"),
    "flag of the engine": (["generate", "--page-sise", "16", "x"], "did you mean '--page-size'?"),
    "flag of sampling": (["generate", "--temprature", "1", "x"], "did you mean '--temperature'?"),
    "flag of no command": (["--versio"], "did you mean '--version'?"),
    "number": (
        ["generate", "--max-tokens", "many", "x"],
        "--max-tokens: invalid int value: 'many'",
    ),
    "number of the engine": (["generate", "--page-size", "big", "x"], "expected a whole number"),
    "missing value": (["generate", "x", "--seed"], "--seed: expected one argument"),
    "bias": (["generate", "--logit-bias", "x", "y"], "--logit-bias: expected ID:BIAS"),
    "choice": (["generate", "--dtype", "float8", "x"], "expected one of 'auto', 'float32'"),
    "minimum": (["generate", "--page-size", "0", "x"], "at least 1"),
    "driver": (["generate", "--data-plane", "tpu", "x"], "'tpu'"),
    "plugin": (["generate", "--plugins", "nope", "x"], "unknown plugin 'nope'"),
    "model": (["generate", "--model", "smolm2", "x"], "did you mean smollm2-135m"),
    "folder": (["generate", "--model", "./nowhere", "x"], "nowhere: no such file or folder"),
    "prompt": (["generate"], "no prompt"),
    "prompts": (["generate", "--prompts", "nowhere.txt"], "cannot read nowhere.txt"),
    "config": (["generate", "--config", "nowhere.toml", "x"], "cannot read nowhere.toml"),
    "chat's flag": (["chat", "--sistem", "x"], "did you mean '--system'?"),
    "plugins' flag": (["plugins", "--jsn"], "did you mean '--json'?"),
}


def test_an_unknown_flag_is_a_short_error(run: Run) -> None:
    """Not all flags there are: the nearest one, or where they are listed."""
    ran = run("generate", "--temprature", "1", "--zzz", "x")
    assert len(ran.err) < 200
    assert "'--zzz'; `tokenspeed generate --help` lists them" in ran.err


@pytest.mark.parametrize("case", BAD)
def test_it_is_one_error_with_code_2(run: Run, case: str) -> None:
    """The error names the thing and the choices; nothing is on standard output."""
    arguments, said = BAD[case]
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.startswith("tokenspeed: ")
    assert "Traceback" not in ran.err


def test_a_configuration_file_is_checked_whole(run: Run, tmp_path: Path) -> None:
    """Every wrong key and value of a file is in one report."""
    file = tmp_path / "engine.toml"
    file.write_text('[scheduler]\npage_sise = 1\nnum_pages = "x"\n', encoding="utf-8")
    ran = run("generate", "--config", str(file), "x")
    assert ran.code == 2
    assert "did you mean 'page_size'" in ran.err
    assert "num_pages: expected a whole number" in ran.err


@pytest.mark.parametrize("damage", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_model_folder_is_refused(
    run: Run, model_folder: Path, tmp_path: Path, damage: str
) -> None:
    """A file that is cut short or missing is named."""
    copy = tmp_path / "model"
    shutil.copytree(model_folder, copy)
    data = (copy / damage).read_bytes()
    (copy / damage).write_bytes(data[: len(data) // 2])
    ran = run("generate", "--model", str(copy), "x")
    (copy / damage).unlink()
    gone = run("generate", "--model", str(copy), "x")
    assert (ran.code, gone.code) == (2, 2)
    assert damage in ran.err
    assert damage.partition(".")[2] in gone.err


def test_an_unsupported_field_of_a_model_is_named(
    run: Run, model_folder: Path, tmp_path: Path
) -> None:
    """A config field that would change the numbers and is not supported is refused."""
    copy = tmp_path / "model"
    shutil.copytree(model_folder, copy)
    fields = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**fields, "hidden_act": "relu6"}))
    ran = run("generate", "--model", str(copy), "x")
    assert ran.code == 2
    assert "hidden_act" in ran.err


def test_too_small_a_page_pool_is_refused(run: Run, engine_flags: list[str]) -> None:
    """A pool that cannot hold one request is refused with what is needed."""
    ran = run("generate", "x", *engine_flags, "--num-pages", "2")
    assert ran.code == 2
    assert "num_pages" in ran.err


def test_an_engine_that_fails_is_code_1(run: Run) -> None:
    """A failure of the engine is named without a traceback."""
    ran = run("generate", "x", "--data-plane", "scripted")
    assert ran.code == 1
    assert ran.err.startswith("tokenspeed: this engine has no tokenizer")


def test_an_interrupt_is_code_130(engine_flags: list[str]) -> None:
    """Ctrl-C while text is streamed ends the command quietly.

    So many prompts that a busy machine cannot finish them before the signal.
    """
    flags = ["--max-tokens", "900", "--ignore-eos", *engine_flags]
    command = [sys.executable, "-m", "tokenspeed_core", "generate", *["Hello"] * 32, *flags]
    # A shell starts what it leaves in the background deaf to Ctrl-C; a child would inherit that.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    signal.signal(signal.SIGINT, inherited)
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_reader_that_leaves_is_no_traceback(engine_flags: list[str]) -> None:
    """A closed pipe ends the command without noise."""
    flags = ["--max-tokens", "900", "--ignore-eos", *engine_flags]
    command = [sys.executable, "-m", "tokenspeed_core", "generate", "Hello", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    assert process.wait(timeout=60) == 1
