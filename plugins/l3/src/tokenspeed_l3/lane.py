# SPDX-License-Identifier: MIT
"""The queue of one kind of operations; everything is called with the executor's lock held."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tokenspeed_l3.jobs import Job


class Lane:
    """Jobs that have not begun, oldest first; workers wait here for the next one."""

    def __init__(self, lock: threading.Lock) -> None:
        self.num_bytes = 0
        self._queue: deque[Job] = deque()
        self._is_awaited = threading.Condition(lock)

    @property
    def num_queued(self) -> int:
        """Jobs that have not begun."""
        return len(self._queue)

    @property
    def oldest_us(self) -> int | None:
        """When the oldest one came."""
        return self._queue[0].queued_us if self._queue else None

    def put(self, job: Job) -> None:
        """Add a job and wake a worker."""
        self._queue.append(job)
        self.num_bytes += job.num_bytes
        self._is_awaited.notify()

    def withdraw(self, job: Job) -> None:
        """Take a job out, if it has not begun."""
        if job in self._queue:
            self._queue.remove(job)
            self.num_bytes -= job.num_bytes

    def take(self, is_over: Callable[[], bool]) -> Job | None:
        """Wait for the next job; None once it is over."""
        while not self._queue:
            if is_over():
                return None
            self._is_awaited.wait()
        job = self._queue.popleft()
        self.num_bytes -= job.num_bytes
        return job

    def clear(self) -> None:
        """Forget all jobs and wake everyone."""
        self._queue.clear()
        self.num_bytes = 0
        self._is_awaited.notify_all()
