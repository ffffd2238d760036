# SPDX-License-Identifier: MIT
"""What the loop and the thread of the sockets hand each other; neither waits for the other.

What the loop posts it sends itself, unless that thread is at the sockets just then: to wake another
thread costs several times what sending does. Whoever sends holds `sending`.

Links to front ends are numbered. When one is lost the loop gets an abort of its requests; what the
loop posted before it read that abort is for the lost link and is never sent on the next one, whose
front end may use the same ids again.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from attrs import frozen

from tokenspeed_core.wire.sockets import Wake
from tokenspeed_hookspecs import AbortRequests, ControlReply, Load, Message, OutputBatch


@frozen(eq=False)
class PostedBatch:
    """A round's chunks on their way out."""

    outputs: OutputBatch
    load: Load


Posted = PostedBatch | ControlReply


@frozen
class _Lost:
    """A link is lost; what is posted after reading this is for the `next_link`."""

    abort: AbortRequests
    next_link: int


class Mailbox:
    """Messages in, posts out; `wake` wakes the sockets' thread."""

    def __init__(self, max_posts: int) -> None:
        self.wake = Wake()
        self.is_stopping = False
        self.is_overrun = False
        self.num_takes = 0
        self.sending = threading.Lock()
        self._send: Callable[[], bool] | None = None
        self._max_posts = max_posts
        self._messages: queue.SimpleQueue[Message | _Lost] = queue.SimpleQueue()
        self._posts: deque[tuple[int, Posted]] = deque()
        self._posts_for = 0

    # --- the loop's side -------------------------------------------------------------------------

    def take(self, wait_s: float | None) -> list[Message]:
        """Every message that is there; with `wait_s`, waits so long for a first one."""
        self.num_takes += 1
        found: list[Message] = []
        try:
            if wait_s is not None:
                self._accept(self._messages.get(timeout=wait_s), found)
            while True:
                self._accept(self._messages.get_nowait(), found)
        except queue.Empty:
            return found

    def post(self, post: Posted) -> None:
        """Leave something to send. Past the bound it is dropped and the link counts as overrun,
        which loses it and ends its requests."""
        if len(self._posts) >= self._max_posts:
            self.is_overrun = True
        else:
            self._posts.append((self._posts_for, post))
        if not self._has_sent():
            self.wake.set()

    def stop(self) -> None:
        """Let the sockets' thread end once everything posted is sent."""
        self.is_stopping = True
        self.wake.set()

    def _has_sent(self) -> bool:
        if not self.sending.acquire(blocking=False):
            return False
        try:
            return self._send is not None and self._send()
        finally:
            self.sending.release()

    def _accept(self, message: Message | _Lost, found: list[Message]) -> None:
        if isinstance(message, _Lost):
            self._posts_for = message.next_link
            message = message.abort
            if not message.request_ids:
                return
        found.append(message)

    # --- the sockets' side -----------------------------------------------------------------------

    @property
    def num_unread(self) -> int:
        """Messages the loop has not taken."""
        return self._messages.qsize()

    def put(self, message: Message) -> None:
        """Leave a message for the loop's next round."""
        self._messages.put(message)

    def lend(self, send: Callable[[], bool] | None) -> None:
        """Let the loop send what it posts by this, which tells whether nothing is left; or not."""
        with self.sending:
            self._send = send

    def next_post(self, link: int) -> Posted | None:
        """The next post for this link, or None; posts for lost links are dropped."""
        while self._posts:
            posted_for, post = self._posts.popleft()
            if posted_for == link:
                return post
        return None

    def discard_posts(self) -> None:
        """Drop every post: there is no link, and nothing of the next one's is asked for yet."""
        self._posts.clear()
        self.is_overrun = False

    def lose(self, link: int, request_ids: tuple[str, ...]) -> None:
        """Tell the loop that a link is lost, with the requests that still ran on it."""
        self._messages.put(_Lost(AbortRequests(request_ids), link + 1))
        self.is_overrun = False
