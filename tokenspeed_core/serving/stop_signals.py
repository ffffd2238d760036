# SPDX-License-Identifier: MIT
"""Ctrl-C and SIGTERM in a process that has an event loop: the first asks, the second insists."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """`asked` is set by the first signal, `insisted` by the second."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    @contextmanager
    def installed(self) -> Iterator[StopSignals]:
        """Take the signals of this process while inside."""
        loop = asyncio.get_running_loop()
        for each in STOPPING:
            loop.add_signal_handler(each, self._take)
        try:
            yield self
        finally:
            for each in STOPPING:
                loop.remove_signal_handler(each)

    def _take(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()
