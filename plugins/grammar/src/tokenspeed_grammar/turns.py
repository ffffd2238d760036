# SPDX-License-Identifier: MIT
"""Letting others have the interpreter.

Whoever waits for it asks for it only after five milliseconds, which is a whole round of a small
model. A release is no help: who let go takes it again before another thread has woken.
"""

from __future__ import annotations

import time

PAUSE_S = 0.0001


def let_others() -> None:
    """Sleep for as long as it takes others to wake."""
    time.sleep(PAUSE_S)
