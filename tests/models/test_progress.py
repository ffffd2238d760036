# SPDX-License-Identifier: MIT
"""Progress shows on a terminal when there is some, and only then."""

from __future__ import annotations

import io

from rich.console import Console

from tokenspeed_core.models.rich_progress import RichProgress


def test_steps_are_shown() -> None:
    """Each step shows its label, a counted one its size too."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with RichProgress(console) as progress:
        progress.start("Downloading x")
        progress.finish()
        progress.start("Converting x", total_bytes=2000)
        progress.advance(1500)
    shown = screen.getvalue()
    assert "Downloading x" in shown
    assert "1.5 kB" in shown


def test_nothing_is_shown_without_steps() -> None:
    """A start from the cache draws nothing."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with RichProgress(console):
        pass
    assert screen.getvalue() == ""
