# SPDX-License-Identifier: MIT
"""What a person sees of a server, and what a program reads."""

from __future__ import annotations

import io
import json
import os

import pytest
from rich.console import Console

from tokenspeed_core.cli.serve_status import PersonStatus, ProgramStatus
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.serving.plan import ServeOptions, ServePlan
from tokenspeed_core.serving.status import ServeStatus
from tokenspeed_core.testing.line_server import LineOptions, LineServer

URL = "tcp://127.0.0.1:1"


def a_life(status: ServeStatus) -> None:
    """Everything that is told, in order."""
    status.loading("a-model", engine_pids=[7, 8])
    status.log_line("WARNING [bold]as it is[/bold]")
    status.ready(URL)
    status.stopping(2.5)


def seen(*, is_terminal: bool) -> str:
    """What a person sees of it."""
    plan = ServePlan(
        config=EngineConfig(), options=ServeOptions(), server=LineServer(LineOptions())
    )
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=20)
    a_life(PersonStatus(plan, console=console))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_person_sees_each_step_on_a_line() -> None:
    """The line to try is whole however narrow the terminal is, and a log line is not markup."""
    loading, log, ready, example, stopping = seen(is_terminal=False).splitlines()
    assert loading == "loading a-model (engine process 7, 8)"
    assert log == "WARNING [bold]as it is[/bold]"
    assert ready.endswith(f"{URL} (Ctrl-C stops)")
    assert example == f"try: echo '{{}}' | nc {URL} # smollm2-135m"
    assert stopping.startswith("stopping; what runs has 2.5 s")


def test_a_terminal_has_a_spinner_that_ends() -> None:
    """The spinner hides the cursor, and shows it again once it is ready."""
    hide, show = "\x1b[?25l", "\x1b[?25h"
    written = seen(is_terminal=True)
    assert written.index(hide) < written.index(show) < written.index("Ctrl-C stops")


def test_a_program_reads_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The engine's log goes to standard error; every process is named."""
    a_life(ProgramStatus())
    said = capsys.readouterr()
    loading, ready, stopping = map(json.loads, said.out.splitlines())
    about = {"model": "a-model", "pid": os.getpid(), "engine_pids": [7, 8]}
    assert loading == {"event": "loading", **about}
    assert ready == {"event": "ready", "url": URL, "seconds": ready["seconds"], **about}
    assert stopping == {"event": "stopping", "drain_timeout_s": 2.5}
    assert said.err == "WARNING [bold]as it is[/bold]\n"
