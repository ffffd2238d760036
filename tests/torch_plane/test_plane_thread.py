# SPDX-License-Identifier: MIT
"""The thread in front of the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from tokenspeed_core.errors import EngineError
from tokenspeed_core.torch_plane.device import Mark
from tokenspeed_core.torch_plane.plane_thread import PlaneThread


def fail() -> None:
    """Fail as a forward might."""
    raise ValueError("out of luck")


@pytest.fixture
def thread() -> Iterator[PlaneThread]:
    """A thread, stopped at the end."""
    thread = PlaneThread("under-test")
    yield thread
    thread.stop()


def test_functions_run_in_the_order_they_were_posted(thread: PlaneThread) -> None:
    """A call returns after everything that was posted before it."""
    ran: list[int] = []
    for number in range(50):
        thread.post(partial(ran.append, number))
    thread.call(lambda: ran.append(50))
    assert ran == list(range(51))


def test_a_post_does_not_wait(thread: PlaneThread) -> None:
    """The poster goes on while the function waits for something the poster does next."""
    gate = threading.Event()
    task = thread.post(gate.wait)
    gate.set()
    assert thread.result(task) is True


def test_functions_run_in_inference_mode(thread: PlaneThread) -> None:
    """Nothing on the thread records gradients."""
    assert thread.call(torch.is_inference_mode_enabled)


def test_a_failed_function_raises_where_its_result_is_wanted(thread: PlaneThread) -> None:
    """The error names what went wrong, and carries it as its cause."""
    task = thread.post(fail)
    with pytest.raises(EngineError, match="ValueError: out of luck") as caught:
        thread.result(task)
    assert isinstance(caught.value.__cause__, ValueError)


def test_nothing_runs_after_a_failure(thread: PlaneThread) -> None:
    """What was queued behind a failure is dropped, and the next call raises."""
    ran: list[str] = []
    gate = threading.Event()
    thread.post(gate.wait)
    thread.post(fail)
    behind = thread.post(lambda: ran.append("behind"))
    gate.set()
    with pytest.raises(EngineError, match="out of luck"):
        thread.result(behind)
    for use in (thread.post, thread.call):
        with pytest.raises(EngineError, match="out of luck"):
            use(lambda: None)
    assert ran == []


def test_a_failed_call_raises_its_own_error_and_ends_nothing(thread: PlaneThread) -> None:
    """A caller that waits handles its own failure; the thread goes on."""
    with pytest.raises(ValueError, match="out of luck"):
        thread.call(fail)
    assert thread.call(lambda: 7) == 7


def test_a_call_from_the_thread_itself_runs_at_once(thread: PlaneThread) -> None:
    """An extension may call back into the plane without waiting for itself."""
    assert thread.call(lambda: thread.call(lambda: 5)) == 5


def test_a_call_behind_a_failure_raises(thread: PlaneThread) -> None:
    """A call that was queued when an earlier function failed does not wait for ever."""
    gate = threading.Event()
    thread.post(gate.wait)
    thread.post(fail)
    threading.Timer(0.01, gate.set).start()
    with pytest.raises(EngineError, match="out of luck"):
        thread.call(lambda: None)


def test_stop_leaves_no_thread_and_may_be_repeated() -> None:
    """After a stop the thread is gone, and using it is an error that says so."""
    thread = PlaneThread("ends-here")
    thread.stop()
    thread.stop()
    assert "ends-here" not in [each.name for each in threading.enumerate()]
    with pytest.raises(EngineError, match="after it was stopped"):
        thread.post(lambda: None)


def test_stop_drops_what_has_not_begun(thread: PlaneThread) -> None:
    """Someone who waits for a dropped function gets an error."""
    gate = threading.Event()
    thread.post(gate.wait)
    waiting = thread.post(lambda: 1)
    stopper = threading.Thread(target=thread.stop)
    stopper.start()
    while not thread.is_stopping:
        pass
    gate.set()
    stopper.join()
    with pytest.raises(EngineError, match="was stopped"):
        thread.result(waiting)


def test_a_device_that_waits_for_ever_is_given_up(thread: PlaneThread) -> None:
    """Who waits for a mark on the device is told when a rank it needs is gone."""

    class Unreached(Mark):
        is_reached = False

    threading.Timer(0.01, thread.give_up, [EngineError("rank 1 is gone")]).start()
    with pytest.raises(EngineError, match="rank 1 is gone"):
        thread.await_mark(Unreached(None))
    thread.await_mark(Mark(None))
