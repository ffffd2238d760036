# SPDX-License-Identifier: MIT
"""`tokenspeed trace` answers prompts and leaves the rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol


class Ran(Protocol):
    """What a command did."""

    code: int
    out: str
    err: str


class Run(Protocol):
    """Runs a command."""

    def __call__(self, *arguments: str) -> Ran: ...


def test_the_command_writes_a_trace(run: Run, engine_flags: list[str], tmp_path: Path) -> None:
    """The answers are those of generate, and the file has rounds and plugins' calls."""
    file = tmp_path / "rounds.json"
    flags = [*engine_flags, "--max-tokens", "4", "--ignore-eos"]
    ran = run("trace", "--out", str(file), *flags, "hello")
    assert ran.code == 0
    assert f"wrote {file}" in ran.err
    names = {each["name"] for each in json.loads(file.read_text())["traceEvents"]}
    assert {"round 1", "plan", "commit", "batch_log.iteration"} <= names


def test_a_folder_that_is_missing_is_refused(run: Run, engine_flags: list[str]) -> None:
    """The command refuses before it loads a model."""
    ran = run("trace", "--out", "no-such-folder/x.json", *engine_flags, "hello")
    assert ran.code == 2
    assert "there is no folder" in ran.err


def test_a_trace_that_was_not_written_is_told(
    run: Run, engine_flags: list[str], tmp_path: Path
) -> None:
    """A file of another time is not taken for it, and the command fails."""
    (file := tmp_path / "rounds.json").write_text("{}")
    flags = [*engine_flags, "--max-tokens", "2", "--without", "trace"]
    ran = run("trace", "--out", str(file), *flags, "hello")
    assert (ran.code, file.read_text()) == (1, "{}")
    assert f"no trace was written to {file}" in ran.err
    assert "wrote" not in ran.err
