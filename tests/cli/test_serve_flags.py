# SPDX-License-Identifier: MIT
"""What `tokenspeed serve` and `tokenspeed engine` refuse before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
ENTRY_POINTS = """[tokenspeed.frontends]
lines = tokenspeed_core.testing.line_server:LineServer
bare = tokenspeed_core.testing.line_server:HOST
"""
LINES = ("serve", "--frontend", "lines")
SCRIPTED = ("--data-plane", "scripted")


@pytest.fixture(autouse=True)
def front_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two front ends are installed: the kit's, and one that is none."""
    info = tmp_path / "lines-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lines\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)


BAD: dict[str, tuple[list[str], str]] = {
    "front end": (["serve", "--frontend", "line"], "unknown driver 'line'; did you mean 'lines'?"),
    "no front end": (["serve", "--frontend", "bare"], "expected an attrs class as its Options"),
    "flag of the front end": ([*LINES, "--prot", "1"], "did you mean '--port'?"),
    "value of the front end": ([*LINES, "--port", "many"], "frontend.port: expected a whole"),
    "drain": ([*LINES, "--drain-timeout", "-1"], "drain_timeout: expected at least 0"),
    "flag of the engine": ([*LINES, "--page-sise", "16"], "did you mean '--page-size'?"),
    "value of the engine": ([*LINES, "--page-size", "0"], "at least 1"),
    "two models": ([*LINES, "a", "--model", "b"], "the model is given twice: 'a' and by --model"),
    "plugin": ([*LINES, "--plugins", "nope"], "unknown plugin 'nope'"),
    "model": ([*LINES, "smolm2"], "did you mean smollm2-135m"),
    "gateway": (["engine"], "give --gateway ipc://PATH or --connect ADDRESS"),
    "gateways": (["engine", "--gateway", "ipc://a", "--connect", "b"], "only one of them"),
    "gateway's URL": (["engine", "--gateway", "tcp://a", *SCRIPTED], "expected the worker's ipc"),
    "engine's flag": (["engine", "--conect", "b"], "did you mean '--connect'?"),
}


@pytest.mark.parametrize("case", BAD)
def test_it_is_one_error_with_code_2(run: Run, case: str) -> None:
    """The error names the thing and the choices, and no process was started."""
    arguments, said = BAD[case]
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.startswith("tokenspeed: ")


def test_a_port_that_is_taken_is_refused(run: Run) -> None:
    """The front end is asked for its problems before any engine starts."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run(*LINES, *SCRIPTED, "--port", str(taken.getsockname()[1]))
    assert ran.code == 2
    assert "Address already in use" in ran.err


def test_the_front_ends_table_is_checked(run: Run, tmp_path: Path) -> None:
    """Keys of `[frontend]` are the driver's name, its own options, and nothing else."""
    file = tmp_path / "engine.toml"
    file.write_text('[frontend]\ndriver = "lines"\nprot = 1\n', encoding="utf-8")
    ran = run("serve", "--config", str(file), *SCRIPTED)
    assert ran.code == 2
    assert "frontend: unknown option 'prot'; did you mean 'port'?" in ran.err


def test_flags_go_over_the_file(run: Run, tmp_path: Path) -> None:
    """The configuration that is shown holds the front end's table as file and flags made it."""
    file = tmp_path / "engine.toml"
    file.write_text('[frontend]\ndriver = "lines"\nport = 1\ngreeting = "hi"\n', encoding="utf-8")
    ran = run("serve", "tiny", "--config", str(file), "--port", "2", "--show-config")
    assert '[frontend]\ndriver = "lines"\nport = 2\ngreeting = "hi"\n' in ran.out
    assert 'model = "tiny"' in ran.out


def test_other_commands_leave_the_front_ends_table_alone(run: Run, tmp_path: Path) -> None:
    """One file configures a server and everything else."""
    file = tmp_path / "engine.toml"
    file.write_text('[frontend]\ndriver = "lines"\n', encoding="utf-8")
    assert run("plugins", "--config", str(file)).code == 0
