# SPDX-License-Identifier: MIT
"""What a process does while a hook runs that may keep it waiting: sleeps, files, sockets.

Only for a process that is thrown away: an audit hook cannot be removed, and the clocks of the
module `time` are replaced by one that only rounds move.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tokenspeed_core.testing.conformance.watching import Watcher

TICK_S = 1e-4  # a reading of the clock
BLOCKING: Mapping[str, str] = {
    "open": "opens a file",
    "socket.connect": "connects a socket",
    "socket.getaddrinfo": "resolves a host name",
    "socket.gethostbyname": "resolves a host name",
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.fork": "starts a process",
    "os.posix_spawn": "starts a process",
    "sqlite3.connect": "opens a database",
    "urllib.Request": "asks another server",
}
IMPORTS = (".py", ".pyc", ".so", ".pth")


class Suspicion:
    """`found` has what the watched hooks did; `now_s` is the time of this process."""

    def __init__(self, start_s: float) -> None:
        self.now_s = start_s
        self.found: list[str] = []
        self._watcher: Watcher | None = None
        self._sleep = time.sleep

    def clock(self) -> float:
        """Seconds; every reading is a little later."""
        self.now_s += TICK_S
        return self.now_s

    @contextmanager
    def of(self, watcher: Watcher) -> Iterator[None]:
        """Look at the hooks of this watcher."""
        self.found, self._watcher = [], watcher
        try:
            yield
        finally:
            self._watcher = None

    def watch_process(self) -> None:
        """Take the clocks over and listen, for the rest of the process."""
        for name in ("time", "monotonic", "perf_counter"):
            setattr(time, name, self.clock)
            setattr(time, f"{name}_ns", lambda: int(self.clock() * 1e9))
        time.sleep = self._slept  # type: ignore[assignment]  # one argument, named otherwise
        sys.addaudithook(self._audit)

    def _slept(self, seconds: float) -> None:
        if seconds > 0:
            self._tell("sleeps")
        self._sleep(seconds)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        told = BLOCKING.get(event)
        if told is None or self._watcher is None or not self._watcher.inside:
            return
        path = arguments[0] if arguments else None
        if event == "open" and (not isinstance(path, str) or path.endswith(IMPORTS)):
            return
        self._tell(f"{told} ({path})" if event == "open" else told)

    def _tell(self, what: str) -> None:
        watcher = self._watcher
        if watcher is None or not watcher.is_inside_here:
            return
        text = f"{watcher.inside} {what}; hooks run on the loop thread and must not wait"
        if text not in self.found:
            self.found.append(text)
