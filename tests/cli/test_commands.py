# SPDX-License-Identifier: MIT
"""Help, chat, plugins, bench, and the commands that plugins bring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tokenspeed_core.cli import bench, main
from tokenspeed_hookspecs import CliCommand

Run = Callable[..., Any]


def test_help_tells_what_a_flag_is_without_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers, switches and choices alike, of the engine and of plugins."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main.main(["generate", "--help"])
    told = capsys.readouterr().out
    assert "tokens a page (64)" in told
    assert "reuse the pages of a common prefix (on)" in told
    assert "(auto, float32, bfloat16; auto by itself)" in told
    assert "the model's own without it\n" in told
    assert "forwards between two decode lines (40)" in told


@pytest.mark.parametrize("arguments", [["--help"], ["plugins"], ["generate", "--show-config"]])
def test_a_command_that_runs_no_model_loads_no_torch(arguments: Sequence[str]) -> None:
    """Help, plugins and --show-config start without torch."""
    code = "import sys; from tokenspeed_core.cli.main import main\ntry: main(sys.argv[1:])\n"
    code += "except SystemExit: pass\nprint('torch' in sys.modules)"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """`tokenspeed --help` names each command."""
    with pytest.raises(SystemExit) as ended:
        main.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in main.COMMANDS)


def test_each_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`tokenspeed COMMAND --help` ends well for every command."""
    for name in main.COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main.main([name, "--help"])
        assert ended.value.code == 0
        assert f"tokenspeed {name}" in capsys.readouterr().out


def test_the_second_turn_of_a_chat_hits_the_cache(run: Run, engine_flags: list[str]) -> None:
    """Each turn sends the whole conversation, and says how much of it the cache had."""
    flags = ["--max-tokens", "20", "--logit-bias", "65:100", *engine_flags]
    ran = run("chat", *flags, stdin="the first question\n\nthe second question\n")
    first, second = (line for line in ran.out.splitlines() if "prompt tokens" in line)
    assert ran.code == 0
    assert first.startswith("24 prompt tokens, 0 of them from the cache")
    assert " 0 of them" not in second
    assert ran.out.count("b" * 20) == 2


def test_chat_ends_with_its_input(run: Run, engine_flags: list[str]) -> None:
    """An empty pipe is a conversation without turns."""
    assert run("chat", *engine_flags).code == 0


def test_plugins_are_reported_as_one_document(run: Run) -> None:
    """--json holds plugins, hooks in order, and problems; a broken choice is code 2."""
    good, bad = run("plugins", "--json"), run("plugins", "--json", "--plugins", "nope")
    states = {row["name"]: row["state"] for row in json.loads(good.out)["plugins"]}
    assert [name for name in states if states[name] == "loaded"] == ["batch_log", "finish_line"]
    assert (good.code, bad.code) == (0, 2)
    assert "unknown plugin 'nope'" in json.loads(bad.out)["problems"][0]


def test_plugins_are_shown_as_a_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table names each plugin, each hook whole, and each hook names who is called."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("plugins")
    assert "request_finished" in ran.out.split()
    assert "batch_log" in ran.out
    assert "committed: batch_log" in ran.out


def test_a_plugins_command_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subcommand of an installed plugin gets the arguments after its name."""
    command = CliCommand("shout", "say it loudly", len)
    monkeypatch.setattr(main, "_of_plugins", lambda: {"shout": command})
    assert run("shout", "a", "--b").code == 2
    assert "shout" in run().out


def test_bench_says_where_benchmarks_are(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a checkout the command says what it needs, and still has help."""
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    ran = run("bench")
    assert ran.code == 2
    assert "of a checkout" in ran.err
    with pytest.raises(SystemExit):
        main.main(["bench", "--help"])


def test_bench_runs_a_script_with_its_flags(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A benchmark is found by its file's name and gets what follows the name."""
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(len(sys.argv))\n")
    assert run("bench", "mine", "--json", "3").code == 3
    assert "unknown benchmark 'mein'; did you mean 'mine'?" in run("bench", "mein").err


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, main.SPINS),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_torch_s_threads_wait_briefly(given: dict[str, str], spins: str | None) -> None:
    """A command says so before torch is imported, unless the environment says how they wait."""
    program = (
        "import os, sys; from tokenspeed_core.cli.main import main; "
        "assert 'torch' not in sys.modules; "
        "sys.argv[1:] = ['bench', '--show-nothing']; main(); "
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == str(spins)
