# SPDX-License-Identifier: MIT
"""How `tokenspeed serve` shows its life: to a person on standard error, or to a program."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence

from rich.console import Console
from rich.status import Status

from tokenspeed_core.serving.plan import ServePlan


class PersonStatus:
    """A few lines, a spinner while the model loads, and at last a line to try."""

    def __init__(self, plan: ServePlan, *, console: Console | None = None) -> None:
        self._plan = plan
        self._console = console or Console(stderr=True)
        self._start = time.monotonic()
        self._spinner: Status | None = None

    def loading(self, model: str, *, engine_pids: Sequence[int]) -> None:
        """Show that the model is loaded, and which process does it."""
        pids = ", ".join(map(str, engine_pids))
        text = f"loading {model} (engine process {pids})"
        if self._console.is_terminal:
            self._spinner = self._console.status(text)
            self._spinner.start()
        else:
            self._say(text)

    def ready(self, url: str) -> None:
        """Show where clients can connect, and a line that does."""
        self._end_spinner()
        self._say(f"ready after {time.monotonic() - self._start:.1f} s: {url} (Ctrl-C stops)")
        self._say(f"try: {self._plan.server.example(url, self._plan.model)}")

    def stopping(self, drain_timeout_s: float) -> None:
        """Show how long running requests have."""
        self._end_spinner()
        self._say(f"stopping; what runs has {drain_timeout_s:g} s to end (Ctrl-C ends it now)")

    def log_line(self, text: str) -> None:
        """Show an engine's line as it is."""
        self._say(text)

    def _say(self, text: str) -> None:
        # `out` breaks no line, so what is to be copied stays whole.
        self._console.out(text, highlight=False)

    def _end_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


class ProgramStatus:
    """One JSON object a line on standard output; an engine's log stays on standard error."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._about: dict[str, object] = {}
        self._errors = Console(stderr=True)

    def loading(self, model: str, *, engine_pids: Sequence[int]) -> None:
        """Name the model and every process."""
        self._about = {"model": model, "pid": os.getpid(), "engine_pids": list(engine_pids)}
        self._say("loading", **self._about)

    def ready(self, url: str) -> None:
        """Give the URL, and all of the above again."""
        seconds = round(time.monotonic() - self._start, 3)
        self._say("ready", url=url, seconds=seconds, **self._about)

    def stopping(self, drain_timeout_s: float) -> None:
        """Say how long running requests have."""
        self._say("stopping", drain_timeout_s=drain_timeout_s)

    def log_line(self, text: str) -> None:
        """Pass an engine's line on."""
        self._errors.out(text, highlight=False)

    def _say(self, event: str, **facts: object) -> None:
        print(json.dumps({"event": event, **facts}), flush=True)
