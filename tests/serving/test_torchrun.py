# SPDX-License-Identifier: MIT
"""torchrun starts every rank of several replicas; one front end serves them all."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

Serve = Callable[..., Any]
UPDATE = "update_weights_from_disk"


def torchrun(count: int) -> list[str]:
    """The start of a command line that runs so many of the rest."""
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]


def rank_zero(server: Any) -> psutil.Process:
    """The process with the front end, which torchrun started."""
    (found,) = [
        each
        for each in psutil.Process(server.process.pid).children()
        if each.environ().get("RANK") == "0"
    ]
    return found


@pytest.mark.slow
def test_replicas_are_served_together(serve: Serve) -> None:
    """Requests go to each engine, an operation to all, and the front end's end is everybody's."""
    server = serve("--dp", "2", "--tp", "2", "--check-ranks", launcher=torchrun(4))
    connection = server.connect()
    for name in "abcd":
        connection.ask(id=name, prompt=[1, 2, 3], max_tokens=4)
        assert len(connection.tokens()) == 4
    connection.ask(control=UPDATE, arguments={"model_path": "m"})
    assert connection.hear() == {"replies": [[True, "applied"]] * 2}
    rank_zero(server).send_signal(signal.SIGTERM)
    code, log = server.end()
    assert (code, "Traceback" in log) == (0, False), log
