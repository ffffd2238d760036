# SPDX-License-Identifier: MIT
"""A server starts, answers, and ends with everything it started, whoever ends first."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest

Serve = Callable[..., Any]


def test_it_serves(serve: Serve) -> None:
    """A request of a client comes back as tokens from the engine's process."""
    connection = (server := serve()).connect()
    connection.ask(id="a", prompt=[1, 2, 3], max_tokens=4)
    assert len(connection.tokens()) == 4
    assert len(server.family) == 1
    assert server.stop()[0] == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(serve: Serve, signum: int) -> None:
    """Ctrl-C and SIGTERM end front end and engine, with code 0 and no complaint."""
    server = serve()
    server.wait_for("ready")
    assert server.stop(signum) == (0, "")


def test_what_runs_may_end_first(serve: Serve) -> None:
    """A request that runs when the server is stopped gets all of its tokens."""
    connection = (server := serve()).connect()
    connection.ask(id="a", prompt=[1], max_tokens=50)
    connection.hear()
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("stopping")
    connection.tokens()
    assert server.end() == (0, "")


def test_a_drain_has_an_end(serve: Serve) -> None:
    """A request longer than the time for it does not hold the server up."""
    connection = (server := serve("--drain-timeout", "0.1")).connect()
    connection.ask(id="a", prompt=[1], max_tokens=4000)
    connection.hear()
    assert server.stop() == (0, "")


def test_a_second_signal_cuts_the_drain_short(serve: Serve) -> None:
    """Ctrl-C twice does not wait for what runs."""
    connection = (server := serve("--drain-timeout", "1000")).connect()
    connection.ask(id="a", prompt=[1], max_tokens=4000)
    connection.hear()
    server.process.send_signal(signal.SIGINT)
    server.wait_for("stopping")
    assert server.stop(signal.SIGINT)[0] == 0


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_an_engines_death_is_told_and_ends_it(serve: Serve, signum: signal.Signals) -> None:
    """Open streams end with an error, and the command with code 1 that names the signal."""
    connection = (server := serve()).connect()
    connection.ask(id="a", prompt=[1], max_tokens=4000)
    connection.hear()
    server.engine.send_signal(signum)
    while "error" not in (line := connection.hear()):
        assert line
    code, said = server.end()
    assert code == 1
    assert f"engine 0 was killed by {signum.name}" in said


def test_the_engine_ends_with_the_front_end(serve: Serve) -> None:
    """A front end that is killed leaves no engine behind, and no folder."""
    server = serve()
    server.wait_for("ready")
    folders = server.folders()
    server.process.kill()
    server.end()
    assert folders
    assert not any(folder.exists() for folder in folders)


def test_it_can_be_stopped_while_it_loads(serve: Serve) -> None:
    """A signal before the engine is there ends it just as well."""
    server = serve()
    server.wait_for("loading")
    assert server.stop() == (0, "")


def test_the_sockets_are_private_and_removed(serve: Serve) -> None:
    """They are in a folder of mode 0700, which is gone at the end."""
    server = serve()
    server.wait_for("ready")
    folders = server.folders()
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700]
    assert server.stop()[0] == 0
    assert not any(folder.exists() for folder in folders)


def test_a_port_that_is_taken_is_refused_first(serve: Serve) -> None:
    """The front end's check comes before any engine: code 2, and nothing was loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = serve("--port", str(taken.getsockname()[1])).end()
    assert code == 2
    assert "Address already in use" in said
