# SPDX-License-Identifier: MIT
"""An engine's end: asked for by a signal, or by the end of its parent.

The parent holds the other end of the engine's standard input and never writes to it after the
order. However the parent ends, the kernel closes that pipe, and the engine follows.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_S = 10.0
CHUNK = 65_536
STDIN = 0


class StopSwitch:
    """Whether SIGTERM came. Inside `between_rounds` the loop reads it; elsewhere, as while a model
    is loaded, SIGTERM raises SystemExit where it hits."""

    def __init__(self) -> None:
        self.is_set = False
        self._raises = True

    def install(self) -> None:
        """Take SIGTERM, and leave Ctrl-C to the parent; call it on the main thread."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    @contextmanager
    def between_rounds(self) -> Iterator[None]:
        """Let the loop end by itself while inside."""
        self._raises = False
        try:
            yield
        finally:
            self._raises = True

    def disarm(self) -> None:
        """Ignore what comes from here on: the process is ending by itself."""
        self._raises = False

    def read(self) -> bool:
        """Whether to stop, for the loop."""
        return self.is_set

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        # Only once: what is being cleaned up must not be interrupted again.
        was_set, self.is_set = self.is_set, True
        if self._raises and not was_set:
            raise SystemExit(0)


def read_line(descriptor: int = STDIN) -> bytes:
    """Read up to the first line break; what follows is left alone, an early end is EOFError."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            raise EOFError("the parent ended before it said which engine to run")
        line += chunk
    return line


def follow_parent(descriptor: int = STDIN) -> threading.Event:
    """Wait, on a thread, for the parent's end; then stop as SIGTERM would, at the latest by force.

    The event is set at the parent's end.
    """
    is_alone = threading.Event()
    threading.Thread(
        target=_follow, args=(descriptor, is_alone), name="lifeline", daemon=True
    ).start()
    return is_alone


def _follow(descriptor: int, is_alone: threading.Event) -> None:
    # `os.read` rather than a file object, whose lock a thread may not hold when Python ends.
    while os.read(descriptor, CHUNK):
        pass
    is_alone.set()
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os._exit(1)
