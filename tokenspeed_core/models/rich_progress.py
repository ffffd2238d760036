# SPDX-License-Identifier: MIT
"""Progress bars on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text


class SizeColumn(ProgressColumn):
    """Shows how much is done, where that is known."""

    def render(self, task: Task) -> Text:
        """Return the size done, or nothing for a step that does not count bytes."""
        return Text(decimal(int(task.completed)) if task.fields["is_counted"] else "")


class RichProgress:
    """Draws one bar a step on a console, as a context manager.

    Nothing is drawn before the first step, so a start from the cache shows nothing.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            SizeColumn(),
            TimeElapsedColumn(),
            console=console or Console(stderr=True),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> RichProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars.tasks:  # stopping what never ran draws a blank line
            self._bars.stop()

    def start(self, label: str, total_bytes: int | None = None) -> None:
        """Open a bar; without a total it only moves."""
        self._bars.start()
        self._task = self._bars.add_task(
            label, total=total_bytes, is_counted=total_bytes is not None
        )

    def advance(self, num_bytes: int) -> None:
        """Move the bar on."""
        if self._task is not None:
            self._bars.advance(self._task, num_bytes)

    def finish(self) -> None:
        """Fill the bar."""
        if self._task is not None:
            self._bars.update(self._task, total=1, completed=1, is_counted=False)
            self._task = None
