# SPDX-License-Identifier: MIT
"""The examples run, and the README shows what is true."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tokenspeed_core.cli.main import COMMANDS
from tokenspeed_core.loop.event_loop import EventLoop

ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def test_a_plugin_of_ones_own_takes_turns() -> None:
    """The greedy tenant's requests run one after the other, the modest one's beside them."""
    said = _run("examples/own_plugin.py")
    order = re.findall(r"\b[ab]\d\b", said)
    assert order.index("b1") < order.index("a2") < order.index("a3")
    assert "most rows of a round: 2" in said
    assert "features must name a tenant" in said


@pytest.mark.slow
def test_composing_shows_each_way_to_ask() -> None:
    """The example of the library's face runs with the default model."""
    said = _run("examples/compose.py")
    assert "Paris" in said
    assert "EngineState(" in said


@pytest.mark.slow
def test_the_readmes_engine_runs() -> None:
    """The README's Python is executed as it stands."""
    (composing,) = (block for block in _blocks("python") if "compose(" in block)
    assert "Paris" in _run("-c", composing)


def test_the_readmes_round_is_the_round() -> None:
    """The round that the README shows is the code of `EventLoop.round`."""
    (shown,) = (block for block in _blocks("python") if "compose(" not in block)
    assert shown == textwrap.dedent(inspect.getsource(EventLoop.round))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_readmes_commands_exist() -> None:
    """Each `tokenspeed` line of the README names a command and flags that there are, in the
    environment that the README makes: the front end's flags come with its package."""
    lines = [line for block in _blocks("sh") for line in block.splitlines()]
    ours = [line.split("#")[0] for line in lines if line.startswith("tokenspeed ")]
    assert {line.split()[1] for line in ours} == set(COMMANDS)
    told = {name: _run("-m", "tokenspeed_core", name, "--help") for name in COMMANDS}
    for line in ours:
        known = told[line.split()[1]]
        assert [flag for flag in re.findall(r"--[\w-]+", line) if flag not in known] == []
