# SPDX-License-Identifier: MIT
"""The process of one engine: takes its order, loads, connects, runs rounds, and tells how it ends.

Standard input is the order and then the life of the parent, standard output the reports, standard
error the log.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import shutil
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

from tokenspeed_core.config import from_tables
from tokenspeed_core.errors import CompositionError, EngineError
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.serving.engine_ranks import engine_ranks
from tokenspeed_core.serving.lifeline import StopSwitch, follow_parent, read_line
from tokenspeed_core.serving.messages import EngineOrder, EngineReport

FAILED, REFUSED = 1, 2
STDOUT, STDERR = 1, 2


class ReportPipe:
    """The parent's end of standard output; whatever else is printed goes to standard error."""

    def __init__(self) -> None:
        self._descriptor = os.dup(STDOUT)
        os.dup2(STDERR, STDOUT)

    def send(self, report: EngineReport) -> None:
        """Write a report; a parent that is gone does not read it."""
        with suppress(BrokenPipeError):
            os.write(self._descriptor, report.to_line())


def main() -> int:
    """Run the engine that the parent orders; returns the process's exit code."""
    faulthandler.enable()
    reports, stop = ReportPipe(), StopSwitch()
    stop.install()
    order = EngineOrder.from_line(read_line())
    is_alone = follow_parent()
    try:
        return run_order(order, reports, stop=stop)
    finally:
        for folder in order.leftovers if is_alone.is_set() else ():
            shutil.rmtree(folder, ignore_errors=True)


def run_order(order: EngineOrder, reports: ReportPipe, *, stop: StopSwitch) -> int:
    """Run an engine and report why it ended; returns the process's exit code."""
    logging.basicConfig(level=order.log_level.upper(), format="%(levelname)s %(message)s")
    try:
        run_engine(order, reports, stop=stop)
    except (CompositionError, ModelError) as error:
        problems = error.problems if isinstance(error, CompositionError) else [str(error)]
        reports.send(EngineReport(problems=tuple(problems), was_refused=True))
        return REFUSED
    except Exception as error:
        # The process's owner: whatever ended the loop is told to the parent.
        if not isinstance(error, EngineError):
            logging.getLogger("tokenspeed").exception("the engine failed")
        reports.send(EngineReport(problems=(_told(error),)))
        return FAILED
    return 0


def run_engine(order: EngineOrder, reports: ReportPipe, *, stop: StopSwitch) -> None:
    """Meet the engine's other ranks, then be the first of them."""
    from tokenspeed_core.serving.first_rank import run_first
    from tokenspeed_core.wire.frontend import ZmqFrontend

    config = from_tables(tomllib.loads(order.config))
    folder = None if order.meeting is None else Path(order.meeting)
    frontend = ZmqFrontend(
        order.handshake,
        on_connected=lambda init: reports.send(EngineReport(output=init.output_address)),
    )
    meeting = engine_ranks(config, replica=order.index, folder=folder, handshake=order.handshake)
    with meeting as ranks:
        run_first(config, frontend, ranks=ranks, index=order.index, stop=stop)


def _told(error: Exception) -> str:
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    kind = "" if isinstance(error, EngineError) else f"{type(error).__name__}: "
    return f"the engine failed: {kind}{error}{notes}"


if __name__ == "__main__":
    sys.exit(main())
