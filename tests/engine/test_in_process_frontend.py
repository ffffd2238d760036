# SPDX-License-Identifier: MIT
"""The in-process frontend by itself: messages in, deliveries out, one end a stream."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from tokenspeed_core.errors import EngineError
from tokenspeed_core.frontends.in_process import Delivery, InProcessFrontend
from tokenspeed_core.testing import request
from tokenspeed_hookspecs import (
    AbortRequests,
    Chunk,
    ChunkDetails,
    ControlReply,
    ControlRequest,
    FinishKind,
    FinishReason,
    Load,
    OutputBatch,
)

LOAD = Load(running=1, waiting=0, active_pages=1, total_pages=2)
Deliveries = queue.SimpleQueue[Delivery]


@pytest.fixture
def frontend() -> Iterator[InProcessFrontend]:
    """A started frontend whose loop is the test."""
    frontend = InProcessFrontend()
    frontend.start()
    yield frontend
    frontend.end(EngineError("over"))


def _opened(frontend: InProcessFrontend, request_id: str) -> Deliveries:
    deliveries: Deliveries = queue.SimpleQueue()
    frontend.add(request(request_id, 3), deliveries.put)
    return deliveries


def _batch(*request_ids: str, last: bool = False) -> OutputBatch:
    rows = len(request_ids)
    details = ChunkDetails(finish=FinishReason(FinishKind.LENGTH, length=1))
    return OutputBatch(
        request_ids=list(request_ids),
        token_ids=list(range(rows)),
        counts=[1] * rows,
        prompt_tokens=[3] * rows,
        completion_tokens=[1] * rows,
        cached_tokens=[0] * rows,
        details=dict.fromkeys(range(rows), details) if last else {},
    )


def test_messages_arrive_in_order(frontend: InProcessFrontend) -> None:
    """The loop receives everything since its last call, oldest first."""
    _opened(frontend, "a")
    _opened(frontend, "b")
    frontend.abort("a")
    names = [getattr(m, "request_id", None) for m in frontend.receive(None)]
    assert names == ["a", "b", None]


def test_an_idle_loop_wakes_for_a_message(frontend: InProcessFrontend) -> None:
    """A wait ends as soon as something comes."""
    threading.Timer(0.01, lambda: _opened(frontend, "a")).start()
    assert len(frontend.receive(60.0)) == 1


def test_a_batch_is_sorted_into_its_streams(frontend: InProcessFrontend) -> None:
    """Each stream gets the tokens of its row."""
    a, b = _opened(frontend, "a"), _opened(frontend, "b")
    frontend.send(_batch("b", "a"), LOAD)
    chunks = [a.get(timeout=60), b.get(timeout=60)]
    assert [chunk.token_ids for chunk in chunks if isinstance(chunk, Chunk)] == [[1], [0]]


def test_sending_does_not_wait_for_a_reader(frontend: InProcessFrontend) -> None:
    """The loop goes on while a reader's callback hangs."""
    free = threading.Event()

    def hang(delivery: Delivery) -> None:
        free.wait()

    frontend.add(request("slow", 3), hang)
    for _ in range(100):
        frontend.send(_batch("slow"), LOAD)
    free.set()


def test_a_stream_ends_once(frontend: InProcessFrontend) -> None:
    """After its last chunk a stream gets nothing: no abort's end, no engine's end."""
    a = _opened(frontend, "a")
    frontend.send(_batch("a", last=True), LOAD)
    a.get(timeout=60)
    assert not frontend.abort("a")
    frontend.end(EngineError("over"))
    assert a.empty()


def test_dropping_a_stream_aborts_its_request(frontend: InProcessFrontend) -> None:
    """A dropped stream gets nothing more, and the loop hears of the abort."""
    a = _opened(frontend, "a")
    frontend.drop("a")
    frontend.send(_batch("a"), LOAD)
    frontend.end(EngineError("over"))
    assert frontend.receive(None)[-1] == AbortRequests(("a",))
    assert a.empty()


def test_an_aborted_id_stays_taken(frontend: InProcessFrontend) -> None:
    """An id cannot be used again while the loop may still wind its request down."""
    _opened(frontend, "a")
    frontend.abort("a")
    with pytest.raises(ValueError, match="aborted just now"):
        _opened(frontend, "a")


def test_the_end_comes_after_what_was_sent(frontend: InProcessFrontend) -> None:
    """Chunks of the last round are delivered before the error that ended the loop."""
    a = _opened(frontend, "a")
    frontend.send(_batch("a"), LOAD)
    frontend.end(EngineError("over"))
    assert isinstance(a.get_nowait(), Chunk)
    assert isinstance(a.get_nowait(), EngineError)
    assert a.empty()


def test_nothing_is_taken_after_the_end(frontend: InProcessFrontend) -> None:
    """A request or a control after the end raises what ended the engine."""
    frontend.end(EngineError("the pump broke"))
    with pytest.raises(EngineError, match="the pump broke"):
        _opened(frontend, "a")
    with pytest.raises(EngineError, match="the pump broke"):
        frontend.control(ControlRequest("pause"))


def test_a_late_reply_is_not_taken_for_the_next_ones(frontend: InProcessFrontend) -> None:
    """A reply that came after its asker gave up is dropped; the next asker gets the next reply."""
    with pytest.raises(TimeoutError):
        frontend.control(ControlRequest("pause"), timeout_s=0.0)
    for message in ("late", "mine"):
        threading.Timer(0.02, frontend.reply, [ControlReply("pause", True, message)]).start()
        threading.Event().wait(0.005)
    assert frontend.control(ControlRequest("pause"), timeout_s=10.0).message == "mine"


def test_an_open_control_request_ends_with_the_engine(frontend: InProcessFrontend) -> None:
    """Who waits for a reply hears what ended the loop instead."""
    threading.Timer(0.02, frontend.end, [EngineError("the pump broke")]).start()
    with pytest.raises(EngineError, match="the pump broke"):
        frontend.control(ControlRequest("pause"), timeout_s=10.0)


def test_a_question_is_answered_on_the_loops_thread(frontend: InProcessFrontend) -> None:
    """A question runs where the loop receives its messages."""
    found: list[int] = []
    asker = threading.Thread(target=lambda: found.append(frontend.ask(threading.get_ident)))
    asker.start()
    while asker.is_alive():
        frontend.receive(0.001)
    assert found == [threading.get_ident()]
