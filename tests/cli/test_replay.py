# SPDX-License-Identifier: MIT
"""`--record FILE` and `tokenspeed replay FILE`: an engine's rounds without its model."""

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


def test_a_recorded_engine_replays_without_its_model(
    run: Run, engine_flags: list[str], model_folder: Path, tmp_path: Path
) -> None:
    """The model is gone, and every answer comes again; a stop string is among what was asked."""
    file = tmp_path / "rounds.rec"
    flags = [*engine_flags, "--max-tokens", "6", "--stop", "zzz", "--record", str(file)]
    assert run("generate", *flags, "hello", "world").code == 0
    hidden = model_folder.with_name("hidden")
    model_folder.rename(hidden)
    try:
        ran = run("replay", str(file), "--json")
    finally:
        hidden.rename(model_folder)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["requests"], found["parted"], found["failure"]) == (2, "", "")


def test_what_is_no_recording_is_refused(run: Run, tmp_path: Path) -> None:
    """A file of another kind, and one that is not there, end with code 2 and one line."""
    other = tmp_path / "other.txt"
    other.write_text("hello")
    assert "is no recording" in run("replay", str(other)).err
    ran = run("replay", str(tmp_path / "gone.rec"))
    assert (ran.code, "cannot read" in ran.err) == (2, True)
