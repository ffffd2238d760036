# SPDX-License-Identifier: MIT
"""An engine's process, seen from its parent: started, listened to, stopped, and its end told."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from attrs import frozen

from tokenspeed_core.errors import CompositionError, EngineError
from tokenspeed_core.serving.messages import EngineOrder, EngineReport

COMMAND = (sys.executable, "-m", "tokenspeed_core.serving.engine_main")
STOP_GRACE_S = 10.0
PIPES_GRACE_S = 1.0
KEPT_LINES = 20
LONGEST_LINE = 65_536


@frozen(kw_only=True)
class EngineEnd:
    """How an engine's process ended: its return code as of `subprocess`, what it reported, and the
    last lines of its log."""

    index: int
    code: int
    report: EngineReport | None
    lines: tuple[str, ...]

    @property
    def how(self) -> str:
        """The end in words."""
        if self.code < 0:
            return f"engine {self.index} was killed by {signal.Signals(-self.code).name}"
        return f"engine {self.index} ended with code {self.code}"

    def error(self) -> CompositionError | EngineError:
        """What to raise for an end that nobody asked for."""
        if self.report is None or not self.report.problems:
            last = f"; its last line: {self.lines[-1]}" if self.lines else ""
            return EngineError(self.how + last)
        if self.report.was_refused:
            return CompositionError(list(self.report.problems))
        return EngineError("\n".join(self.report.problems))


class EngineProcess:
    """One engine in a process of its own, which ends when this one does.

    `hear` gets the lines of its log. `output` is where it sends, once it is connected.
    """

    def __init__(self, process: Process, index: int, *, hear: Callable[[str], None]) -> None:
        self.index = index
        self.output: str | None = None
        self._process = process
        self._hear = hear
        self._report: EngineReport | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._end = asyncio.create_task(self._follow())

    @classmethod
    async def start(cls, order: EngineOrder, *, hear: Callable[[str], None]) -> EngineProcess:
        """Start a process that runs this engine."""
        # In a group of its own, so that Ctrl-C in a terminal reaches the parent alone.
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=PIPE, stdout=PIPE, stderr=PIPE, process_group=0
        )
        started = cls(process, order.index, hear=hear)
        assert process.stdin is not None
        process.stdin.write(order.to_line())
        with suppress(ConnectionError):  # it died already; `ended` tells how
            await process.stdin.drain()
        return started

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    async def ended(self) -> EngineEnd:
        """Wait for the end of the process."""
        return await asyncio.shield(self._end)

    async def stop(self, *, grace_s: float = STOP_GRACE_S) -> EngineEnd:
        """End the process, by force if it does not end by itself in time."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            return await asyncio.wait_for(self.ended(), grace_s)
        except TimeoutError:
            self.kill()
        return await self.ended()

    def kill(self) -> None:
        """End the process at once."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _follow(self) -> EngineEnd:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pipes = asyncio.gather(
            _read_lines(self._process.stdout, self._take_report),
            _read_lines(self._process.stderr, self._take_line),
        )
        code = await self._process.wait()
        # A process that the engine started may outlive it and hold its pipes.
        with suppress(TimeoutError):
            await asyncio.wait_for(pipes, PIPES_GRACE_S)
        return EngineEnd(index=self.index, code=code, report=self._report, lines=tuple(self._lines))

    def _take_report(self, line: bytes) -> None:
        try:
            self._report = EngineReport.from_line(line)
        except (ValueError, TypeError, KeyError):
            self._take_line(line)  # printed by something before the engine took its output
            return
        self.output = self._report.output or self.output

    def _take_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._lines.append(text)
            self._hear(text)


async def _read_lines(stream: asyncio.StreamReader, take: Callable[[bytes], None]) -> None:
    rest = b""
    while chunk := await stream.read(LONGEST_LINE):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            take(line)
        if len(rest) > LONGEST_LINE:
            take(rest)
            rest = b""
    if rest:
        take(rest)
