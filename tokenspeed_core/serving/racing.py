# SPDX-License-Identifier: MIT
"""Waiting for whichever of several things comes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def first_done(*tasks: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """Wait for one of the tasks; if several are done, it is the one named first."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return next(task for task in tasks if task.done())


@asynccontextmanager
async def running(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """A task that has ended, by itself or cancelled, when the block is left."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # whoever wanted it asked the task
