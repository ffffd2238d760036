# SPDX-License-Identifier: MIT
"""What happens on one link: messages in, posts out, and a sign of life while there is neither."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, field

from tokenspeed_core.wire.codec import CONTROL, decode_message, request_id_of
from tokenspeed_core.wire.control import pack_reply
from tokenspeed_core.wire.dropped import DroppedMessages
from tokenspeed_core.wire.link import Link
from tokenspeed_core.wire.mailbox import Mailbox, Posted, PostedBatch
from tokenspeed_core.wire.packing import WireError
from tokenspeed_core.wire.settings import WireSettings
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    ChunkDetails,
    ControlReply,
    FinishKind,
    FinishReason,
    Load,
    Message,
    OutputBatch,
)

# So many messages are read before outputs have their turn.
BURST = 256
CLIENT_ERROR = 400
WAIT_S = 1.0
FULL_WAIT_S = 0.01


@define(eq=False, kw_only=True)
class Traffic:
    """Carries messages between a link and the mailbox.

    `running` are the requests whose end was neither asked for nor sent. Without any the engine is
    `idle`, as far as this front end is concerned: the load that the loop tells with the last abort
    may still count the pages of rows in flight, and nothing follows it until the next request.
    """

    link: Link
    number: int
    mailbox: Mailbox
    settings: WireSettings
    dropped: DroppedMessages
    log: logging.Logger
    clock: Callable[[], float]
    idle: Load
    running: dict[str, None] = field(factory=dict, init=False)
    _load: Load = field(init=False)
    _answers: deque[OutputBatch] = field(factory=deque, init=False)
    _moved_at: float = field(init=False)
    _sent_at: float = field(init=False)
    _num_takes: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._load = self.idle
        self._moved_at = self._sent_at = self.clock()

    @property
    def problem(self) -> str | None:
        """Why this link is of no use any more, or None."""
        if self.link.is_lost:
            return "it disconnected"
        if self.mailbox.is_overrun:
            return f"more than {self.settings.max_queued} messages wait for it"
        blocked_s = self.clock() - self._moved_at
        if self.link.unsent is not None and blocked_s > self.settings.send_limit_s:
            return f"it has taken no message for {blocked_s:.0f} s"
        return None

    def greet(self) -> None:
        """Tell the load, which a gateway routes by, without a chunk."""
        self._answers.append(OutputBatch())

    def step(self) -> None:
        """Wait for something to do, and do it."""
        mailbox = self.mailbox
        has_room = mailbox.num_unread < self.settings.max_unread
        wait_s = min(WAIT_S, self.settings.heartbeat_s) if has_room else FULL_WAIT_S
        self.link.wait(mailbox.wake, wait_s, is_reading=has_room)
        with mailbox.sending:
            self._read()
            self.write()
            self._give_a_sign()

    def send_posts(self) -> bool:
        """Send what the loop posted, on its thread; whether nothing is left for the sockets' own.

        That one polls the output for room while a message is unsent, and so must have it alone.
        """
        if self.link.unsent is not None:
            return False
        self.write()
        return self.link.unsent is None

    def write(self) -> None:
        """Send what is there, until it would wait."""
        while self.link.send_unsent():
            self._moved_at = self.clock()
            frames = self._next()
            if frames is None:
                return
            self._sent_at = self._moved_at
            self.link.send(frames)

    def _read(self) -> None:
        for _ in range(BURST):
            if self.mailbox.num_unread >= self.settings.max_unread:
                return
            frames = self.link.receive()
            if frames is None:
                return
            self._take(frames)

    def _take(self, frames: Sequence[bytes]) -> None:
        try:
            message = self._decode(frames)
        except WireError as error:
            self.dropped.note(frames, error)
            self._answer(frames, error)
            return
        if isinstance(message, AddRequest):
            self.running[message.request_id] = None
        elif isinstance(message, AbortRequests):
            self._forget(message.request_ids)
            if not self.running:
                self.greet()
        self.mailbox.put(message)

    def _decode(self, frames: Sequence[bytes]) -> Message:
        if frames[0] == CONTROL and not self.link.is_own_client:
            raise WireError("expected no control message from a gateway: it cannot read a reply")
        return decode_message(frames)

    def _answer(self, frames: Sequence[bytes], problem: WireError) -> None:
        """End a request that could not be read: without an answer its client waits for ever."""
        request_id = request_id_of(frames)
        # An id that runs already belongs to another request, whose client would take the answer.
        if request_id is None or request_id in self.running:
            return
        reason = FinishReason(
            FinishKind.ABORT, message=f"Invalid request: {problem}", status_code=CLIENT_ERROR
        )
        details = {0: ChunkDetails(finish=reason)}
        self._answers.append(OutputBatch([request_id], [], [0], [0], [0], [0], details))

    def _next(self) -> Sequence[bytes] | None:
        if self._answers:
            return self._batch(self._answers.popleft())
        while (post := self.mailbox.next_post(self.number)) is not None:
            frames = self._packed(post)
            if frames is not None:
                return frames
        return None

    def _packed(self, post: Posted) -> Sequence[bytes] | None:
        if isinstance(post, PostedBatch):
            self._load = post.load
            self._forget(_ended(post.outputs))
            return self._batch(post.outputs)
        # A gateway would take a reply for a batch it cannot read, and give up on the engine.
        if not self.link.is_own_client:
            return None
        try:
            return [pack_reply(post, self.link.engine_index)]
        except WireError as error:
            return [pack_reply(ControlReply(post.name, False, str(error)), self.link.engine_index)]

    def _batch(self, outputs: OutputBatch) -> Sequence[bytes]:
        if not self.link.is_own_client:
            self._log_aborts(outputs)
        return self.link.pack(outputs, self._load if self.running else self.idle)

    def _log_aborts(self, outputs: OutputBatch) -> None:
        """A gateway has no place for the reason of an abort."""
        for row, details in outputs.details.items():
            if details.finish is not None and details.finish.message is not None:
                self.log.info(
                    "request %s was aborted: %s", outputs.request_ids[row], details.finish.message
                )

    def _forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.running.pop(request_id, None)

    def _give_a_sign(self) -> None:
        """Send an empty batch during long silent work, as long as the loop goes round."""
        num_takes = self.mailbox.num_takes
        is_silent = self.clock() - self._sent_at >= self.settings.heartbeat_s
        if self.running and is_silent and num_takes != self._num_takes:
            self._num_takes = num_takes
            self.greet()
            self.write()


def _ended(outputs: OutputBatch) -> Iterator[str]:
    for row, details in outputs.details.items():
        if details.finish is not None:
            yield outputs.request_ids[row]
