# SPDX-License-Identifier: MIT
"""The handshake from the engine's side.

HELLO is said exactly once a connection: a front end that hears it twice from one engine gives up on
all of them. A connection that dropped, before or after HELLO, is replaced by a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq
from attrs import define

from tokenspeed_core.keyed_address import shown
from tokenspeed_core.wire.dropped import DroppedMessages
from tokenspeed_core.wire.handshake import HELLO, READY, Init, pack_status, unpack_init
from tokenspeed_core.wire.mailbox import Mailbox
from tokenspeed_core.wire.packing import WireError
from tokenspeed_core.wire.settings import WireSettings
from tokenspeed_core.wire.sockets import WatchedSocket, milliseconds


class Notice:
    """`is_due` once in so many seconds, for the first time after as many."""

    def __init__(self, every_s: float, clock: Callable[[], float]) -> None:
        self._every_s = every_s
        self._clock = clock
        self._last = clock()

    def is_due(self) -> bool:
        """Whether to say something now; the time then starts again."""
        now = self._clock()
        if now - self._last < self._every_s:
            return False
        self._last = now
        return True


@define(eq=False, kw_only=True)
class Dialer:
    """Connects to a handshake address until a front end answers."""

    context: zmq.Context[zmq.Socket[bytes]]
    address: str
    identity: bytes
    mailbox: Mailbox
    dropped: DroppedMessages
    settings: WireSettings
    clock: Callable[[], float]
    log: logging.Logger

    def dial(self) -> Init | None:
        """Shake hands, however long it takes; None when told to stop meanwhile."""
        notice = Notice(self.settings.notice_s, self.clock)
        while not self.mailbox.is_stopping:
            socket = WatchedSocket(
                self.context,
                zmq.DEALER,
                address=self.address,
                options={zmq.ROUTING_ID: self.identity},
            )
            init = self._shake(socket, notice)
            socket.close(self.settings.linger_s if init is not None else 0)
            if init is not None:
                return init
            self.pause()
        return None

    def _shake(self, socket: WatchedSocket, notice: Notice) -> Init | None:
        """HELLO, INIT and READY on one connection; None if it drops or makes no sense."""
        socket.send([pack_status(HELLO)])
        poller = zmq.Poller()
        socket.watch(poller)
        poller.register(self.mailbox.wake.descriptor, zmq.POLLIN)
        limit = self.clock() + self.settings.init_limit_s
        wait_s = min(self.settings.notice_s, self.settings.init_limit_s)
        while not self.mailbox.is_stopping:
            poller.poll(milliseconds(wait_s))
            self.mailbox.wake.clear()
            self.mailbox.discard_posts()
            socket.look()
            frames = socket.receive()
            if frames is not None:
                return self._ready(socket, frames)
            if socket.is_lost or self.clock() >= limit:
                return None
            if notice.is_due():
                self.log.info("no front end at %s yet; still trying", shown(self.address))
        return None

    def _ready(self, socket: WatchedSocket, frames: list[bytes]) -> Init | None:
        try:
            init = unpack_init(frames[0])
        except WireError as error:
            self.dropped.note(frames, error)
            return None
        socket.send([pack_status(READY)])
        return init

    def pause(self) -> None:
        """Wait a little before the next attempt."""
        poller = zmq.Poller()
        poller.register(self.mailbox.wake.descriptor, zmq.POLLIN)
        poller.poll(milliseconds(self.settings.retry_s))
