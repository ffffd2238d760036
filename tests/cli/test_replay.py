# SPDX-License-Identifier: MIT
"""`--record FILE` and `tokenspeed replay FILE`: an engine's rounds without its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from tokenspeed_core.loop import relay
from tokenspeed_core.recording import codec
from tokenspeed_core.recording.tape import Frame, Header, TapeWriter
from tokenspeed_hookspecs import AbortRequests, AddRequest, ForwardResult


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
    assert found["is_whole"]
    file.write_bytes(file.read_bytes()[:-1])
    assert "the file has no end" in run("replay", str(file)).out
    ran = run("replay", str(file), "--until", "0")
    assert (ran.code, "--until: expected at least 1" in ran.err) == (2, True)


def test_a_damaged_recording_is_told(run: Run, tmp_path: Path) -> None:
    """As one line and code 2, wherever it lies."""
    file = tmp_path / "rounds.rec"
    tape = TapeWriter(file)
    tape.header(Header(config="", plugins=(), plane={}))
    tape.frame(Frame(0))
    tape.close()
    whole = file.read_bytes()
    file.write_bytes(whole[:-12] + b"\xc0" + whole[-11:])
    ran = run("replay", str(file), "--last", "1")
    assert (ran.code, "is damaged between bytes" in ran.err) == (2, True)
    file.write_bytes(whole[:30])
    assert "has no header of a recording: it ends before that" in run("replay", str(file)).err


def test_the_last_rounds_are_shown(run: Run, tmp_path: Path) -> None:
    """What came after the file was full cannot be replayed, and can be read."""
    file = tmp_path / "rounds.rec"
    tape = TapeWriter(file, most_bytes=2000)
    tape.header(Header(config="", plugins=(), plane={}))
    message = relay.encode(False, [AddRequest("a", [1, 2]), AbortRequests(("b",))], now=0.0)
    result = codec.result_to_plain(ForwardResult([7, 8], nan_rows=[1]))
    for number in range(100):
        tape.frame(Frame(number, (("m", message), ("r", result), ("!", "it broke")), (1.0,)))
    tape.close()
    ran = run("replay", str(file), "--last", "2")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-4:] == [
        "round 99 (after the file was full: it cannot be replayed)",
        "  messages: request 'a' of 2 tokens, abort of 'b'",
        "  a forward's result: tokens [7, 8], NaN in rows [1]",
        "  failed: it broke",
    ]
    rounds = json.loads(run("replay", str(file), "--last", "2", "--json").out)["rounds"]
    assert len(rounds) == 2


def test_what_is_no_recording_is_refused(run: Run, tmp_path: Path) -> None:
    """A file of another kind, and one that is not there, end with code 2 and one line."""
    other = tmp_path / "other.txt"
    other.write_text("hello")
    assert "is no recording" in run("replay", str(other)).err
    ran = run("replay", str(tmp_path / "gone.rec"))
    assert (ran.code, "cannot read" in ran.err) == (2, True)
