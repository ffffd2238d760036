# SPDX-License-Identifier: MIT
"""Python's collector in a process that serves."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def settle_heap() -> None:
    """Leave what was loaded out of later collections: it stays until the process ends.

    A full collection of a process that holds torch took half a second on two cores, in which no
    round runs and no stream moves.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def settled_heap() -> Iterator[None]:
    """The same while inside: a rank's scheduler complains of what is left when a process ends."""
    settle_heap()
    try:
        yield
    finally:
        gc.unfreeze()
