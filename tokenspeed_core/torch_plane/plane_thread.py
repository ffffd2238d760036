# SPDX-License-Identifier: MIT
"""The one thread that touches the model, and the queue in front of it.

What is posted runs in the order it was posted. The first posted function that raises ends the
plane: nothing behind it runs, and every later call raises an EngineError that names the cause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

import torch
from attrs import define, field

from tokenspeed_core.errors import EngineError
from tokenspeed_core.torch_plane.device import Mark

T = TypeVar("T")
# How often a wait looks whether it is in vain, and how long a thread that may be stuck is awaited.
LOOK_S, STUCK_S = 0.2, 1.0
# How often a wait looks whether the device is done: a small part of any forward on one.
MARK_LOOK_S = 50e-6


@define(eq=False)
class Task(Generic[T]):
    """One function asked of the thread, and later what came of it.

    It lets go of the function, and so of the model, once that ran: a caller may keep the task.
    """

    _function: Callable[[], T] | None
    # A failing call is its caller's business; a failing forward ends the plane.
    ends_plane: bool = True
    error: BaseException | None = None
    _value: T | None = field(default=None, init=False)
    _done: threading.Event = field(factory=threading.Event, init=False)

    def run(self) -> None:
        """Run the function and keep its value or its error."""
        assert self._function is not None, "a task runs once"
        try:
            self._value = self._function()
        except BaseException as error:  # noqa:BLE001  # the failure policy of this thread
            self.error = error
        self._finish()

    def drop(self, error: BaseException) -> None:
        """Give up the task without running it."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self._function = None
        self._done.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the task ran or was dropped; False if that takes longer than the timeout."""
        return self._done.wait(timeout_s)

    @property
    def value(self) -> T:
        """What the function returned; only after a `wait` that found no error."""
        assert self._done.is_set()
        assert self.error is None
        return cast("T", self._value)  # T itself may allow None


class PlaneThread:
    """Runs posted functions one after another in inference mode."""

    def __init__(self, name: str = "torch-plane") -> None:
        self._queue: SimpleQueue[Task[Any] | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self.is_stopping = False
        self._is_given_up = False
        # A daemon, so that an engine that was never stopped cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, function: Callable[[], T]) -> Task[T]:
        """Queue a function; EngineError if an earlier one failed."""
        self.check()
        return self._put(Task(function))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function behind what was posted and wait; its own exception is raised here.

        On the thread itself it runs at once.
        """
        self.check()
        if threading.current_thread() is self._thread:
            return function()
        task = self._put(Task(function, ends_plane=False))
        self._await(task)
        self.check()
        if task.error is not None:
            raise task.error
        return task.value

    def result(self, task: Task[T]) -> T:
        """Wait for a posted task; EngineError if it, or one before it, failed."""
        self._await(task)
        if task.error is not None:
            self._raise(task.error)
        return task.value

    def await_mark(self, mark: Mark) -> None:
        """Wait for the device; EngineError if it is given up meanwhile.

        The device may wait for a rank that is gone, and its own wait would hear of nothing.
        """
        while not mark.is_reached:
            if self._is_given_up:
                self.check()
            time.sleep(MARK_LOOK_S)

    def check(self) -> None:
        """Raise EngineError if a posted function failed, or the thread was stopped."""
        if self._failure is not None:
            self._raise(self._failure)
        if self.is_stopping:
            raise EngineError("the data plane was used after it was stopped")

    def give_up(self, error: EngineError) -> None:
        """Fail from outside; who waits for a task is told, though the thread may be stuck in it."""
        if self._failure is None:
            self._failure = error
        self._is_given_up = True

    def stop(self) -> None:
        """Drop what has not begun, end the thread and wait for it; again does nothing."""
        self.is_stopping = True
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(STUCK_S if self._is_given_up else None)

    def _await(self, task: Task[Any]) -> None:
        while not task.wait(LOOK_S):
            if self._is_given_up:
                self.check()

    def _put(self, task: Task[T]) -> Task[T]:
        self._queue.put(task)
        return task

    def _raise(self, cause: BaseException) -> None:
        raise EngineError(f"the data plane failed: {type(cause).__name__}: {cause}") from cause

    def _run(self) -> None:
        with torch.inference_mode():
            while (task := self._queue.get()) is not None:
                self._serve(task)
                # Else the last task, and the tensors it holds, would live until the next one.
                del task
        while not self._queue.empty():
            if (left := self._queue.get()) is not None:
                left.drop(EngineError("the data plane was stopped"))

    def _serve(self, task: Task[Any]) -> None:
        if self._failure is not None or self.is_stopping:
            task.drop(self._failure or EngineError("the data plane was stopped"))
            return
        task.run()
        if task.error is not None and task.ends_plane:
            self._failure = task.error
