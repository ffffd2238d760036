# SPDX-License-Identifier: MIT
"""A frontend for callers in the engine's own process.

The loop thread puts one object a round into a queue; a thread of the frontend's own sorts it into
the open streams, so that neither many streams nor a slow reader costs the loop anything. A stream
gets exactly one end: its last chunk, an error, or the abort its caller asked for.

A stream may be dropped from a finaliser, which can run on any thread and inside the lock: hence a
lock that its own thread may take again.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from attrs import define, field

from tokenspeed_core.errors import EngineError
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    Chunk,
    ChunkDetails,
    ControlReply,
    ControlRequest,
    FinishKind,
    FinishReason,
    Load,
    Message,
    OutputBatch,
)

Delivery = Chunk | EngineError
Deliver = Callable[[Delivery], None]
T = TypeVar("T")
_Reply = queue.SimpleQueue[ControlReply | EngineError]

# The loop may still be winding down a request that its caller aborted, and would not answer a new
# one of the same id; so many of the last aborted ids stay taken.
REMEMBERED_ABORTS = 4096


@define(eq=False)
class _Batch:
    outputs: OutputBatch
    load: Load


@define(eq=False)
class InProcessFrontend:
    """Messages in by `add`, `abort` and `control`; chunks out through the callbacks given to `add`.

    Callbacks run on the frontend's thread and must neither block nor raise.
    """

    load: Load | None = field(default=None, init=False)
    is_closed: bool = field(default=False, init=False)
    _inbox: queue.SimpleQueue[Message] = field(factory=queue.SimpleQueue, init=False)
    _questions: queue.SimpleQueue[Callable[[], None]] = field(factory=queue.SimpleQueue, init=False)
    _outbox: queue.SimpleQueue[_Batch | ControlReply | None] = field(
        factory=queue.SimpleQueue, init=False
    )
    _open: dict[str, Deliver] = field(factory=dict, init=False)
    _aborted: dict[str, None] = field(factory=dict, init=False)
    _asked: dict[str, deque[_Reply]] = field(factory=dict, init=False)
    _lock: threading.RLock = field(factory=threading.RLock, init=False)
    _failure: EngineError | None = field(
        factory=lambda: EngineError("the engine is not running; use it in a `with`, or start it"),
        init=False,
    )
    _thread: threading.Thread | None = field(default=None, init=False)

    # --- the loop's side -------------------------------------------------------------------------

    def receive(self, wait_s: float | None) -> list[Message]:
        """Everything that came since the last call; waits for a first one if told to."""
        while not self._questions.empty():
            self._questions.get_nowait()()
        found: list[Message] = []
        try:
            if wait_s is not None:
                found.append(self._inbox.get(timeout=wait_s))
            while True:
                found.append(self._inbox.get_nowait())
        except queue.Empty:
            return found

    def send(self, outputs: OutputBatch, load: Load) -> None:
        """Take a round's chunks."""
        self._outbox.put(_Batch(outputs, load))

    def reply(self, reply: ControlReply) -> None:
        """Take the answer to a control request."""
        self._outbox.put(reply)

    # --- the callers' side -----------------------------------------------------------------------

    @property
    def num_open(self) -> int:
        """Streams that have not ended."""
        return len(self._open)

    @property
    def failure(self) -> EngineError | None:
        """Why no request can run, or None while the loop runs."""
        return self._failure

    def start(self) -> None:
        """Start sorting outputs."""
        self._failure = None
        self._thread = threading.Thread(target=self._sort, name="tokenspeed-outputs", daemon=True)
        self._thread.start()

    def add(self, request: AddRequest, deliver: Deliver) -> None:
        """Send a request; ValueError if its id is in use, EngineError if the engine has ended."""
        request_id = request.request_id
        with self._lock:
            self._check_runs()
            if request_id in self._open or request_id in self._aborted:
                raise ValueError(
                    f"request id {request_id!r} is in use or was aborted just now; give each "
                    "request an id of its own, or none"
                )
            self._open[request_id] = deliver
        self._inbox.put(request)

    def abort(self, request_id: str) -> bool:
        """End a request; its stream ends here and now. False if it is not open."""
        deliver = self._leave(request_id)
        if deliver is None:
            return False
        reason = FinishReason(FinishKind.ABORT, message="aborted by the caller")
        deliver(Chunk([], details=ChunkDetails(finish=reason)))
        return True

    def drop(self, request_id: str) -> None:
        """Forget a stream nobody reads any more, and abort its request."""
        self._leave(request_id)

    def control(self, request: ControlRequest, *, timeout_s: float | None = None) -> ControlReply:
        """Send a control request and wait for its reply; TimeoutError past the limit."""
        reply: _Reply = queue.SimpleQueue()
        with self._lock:
            self._check_runs()
            # Replies to one name come in the order of its requests; a late one finds its own.
            self._asked.setdefault(request.name, deque()).append(reply)
            self._inbox.put(request)
        try:
            answer = reply.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no reply to {request.name!r} within {timeout_s} s") from None
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def ask(self, question: Callable[[], T]) -> T:
        """Answer a question on the loop's thread, between two rounds; here if none runs."""
        answers: queue.SimpleQueue[T] = queue.SimpleQueue()
        with self._lock:
            if self._failure is not None:
                return question()
            self._questions.put(lambda: answers.put(question()))
        return answers.get()

    def close(self) -> None:
        """Tell the loop that nothing more will come; it ends after its round."""
        self.is_closed = True

    def end(self, failure: EngineError) -> None:
        """The loop has ended: deliver what it sent, then this error to every stream still open."""
        with self._lock:
            self._failure = failure
            while not self._questions.empty():
                self._questions.get_nowait()()
        self._outbox.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # --- sorting ---------------------------------------------------------------------------------

    def _sort(self) -> None:
        while (item := self._outbox.get()) is not None:
            if isinstance(item, ControlReply):
                if waiting := self._asked.get(item.name):
                    waiting.popleft().put(item)
            else:
                self.load = item.load
                self._deliver(item.outputs)
        assert self._failure is not None, "the queue ends with a reason"
        with self._lock:
            left, self._open = list(self._open.values()), {}
            asked, self._asked = list(self._asked.values()), {}
        for deliver in left:
            deliver(self._failure)
        for reply in (reply for replies in asked for reply in replies):
            reply.put(self._failure)

    def _deliver(self, outputs: OutputBatch) -> None:
        columns = zip(
            outputs.request_ids,
            outputs.counts,
            outputs.prompt_tokens,
            outputs.completion_tokens,
            outputs.cached_tokens,
            strict=True,
        )
        tokens, details_of, stream_of = outputs.token_ids, outputs.details.get, self._open.get
        at = 0
        for row, (request_id, count, prompt, completion, cached) in enumerate(columns):
            end = at + count
            details = details_of(row)
            is_last = details is not None and details.finish is not None
            deliver = self._take(request_id) if is_last else stream_of(request_id)
            if deliver is not None:
                deliver(Chunk(tokens[at:end], prompt, completion, cached, details))
            at = end

    def _take(self, request_id: str) -> Deliver | None:
        with self._lock:
            return self._open.pop(request_id, None)

    def _leave(self, request_id: str) -> Deliver | None:
        """Take a stream out before its end, and abort its request."""
        with self._lock:
            deliver = self._open.pop(request_id, None)
            if deliver is None:
                return None
            self._aborted[request_id] = None
            if len(self._aborted) > REMEMBERED_ABORTS:
                del self._aborted[next(iter(self._aborted))]
        self._inbox.put(AbortRequests((request_id,)))
        return deliver

    def _check_runs(self) -> None:
        if self._failure is not None:
            raise EngineError(*self._failure.args) from self._failure.__cause__
