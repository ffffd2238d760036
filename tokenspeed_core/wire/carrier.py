# SPDX-License-Identifier: MIT
"""The thread of an engine's sockets: dial, carry messages until the link is lost, dial again.

A lost link takes its requests with it: their clients are gone, so the loop gets an abort of them,
and the next front end starts with nothing. A front end that leaves messages untaken for too long is
as good as gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq
from attrs import define, field

from tokenspeed_core.keyed_address import shown
from tokenspeed_core.wire.dialer import Dialer
from tokenspeed_core.wire.dropped import DroppedMessages
from tokenspeed_core.wire.handshake import Init, pack_identity, pack_init
from tokenspeed_core.wire.link import Link
from tokenspeed_core.wire.mailbox import Mailbox
from tokenspeed_core.wire.packing import WireError
from tokenspeed_core.wire.settings import WireSettings
from tokenspeed_core.wire.traffic import Traffic
from tokenspeed_hookspecs import EngineInfo, Load


@define(eq=False, kw_only=True)
class Carrier:
    """Runs on a thread of its own until the mailbox stops; the sockets are used there, and the
    output by the loop as well, see `Mailbox`.

    `on_connected` is called there for each front end, and must neither block nor raise.
    """

    address: str
    info: EngineInfo
    registration: bytes
    mailbox: Mailbox
    settings: WireSettings
    dropped: DroppedMessages
    clock: Callable[[], float]
    log: logging.Logger
    on_connected: Callable[[Init], None]
    _context: zmq.Context[zmq.Socket[bytes]] = field(factory=zmq.Context, init=False)

    def run(self) -> None:
        """Serve one front end after another."""
        number = 0
        dialer = self._dialer()
        try:
            while (init := dialer.dial()) is not None:
                link = self._open(init)
                if link is not None:
                    self._carry(link, init, number=number)
                    number += 1
                dialer.pause()
        finally:
            self._context.term()

    def _dialer(self) -> Dialer:
        return Dialer(
            context=self._context,
            address=self.address,
            identity=pack_identity(self.info.index),
            mailbox=self.mailbox,
            dropped=self.dropped,
            settings=self.settings,
            clock=self.clock,
            log=self.log,
        )

    def _open(self, init: Init) -> Link | None:
        try:
            return Link(
                self._context,
                init,
                identity=pack_identity(self.info.index),
                registration=self.registration,
            )
        except WireError as error:
            self.dropped.note([pack_init(init)], error)
            return None

    def _carry(self, link: Link, init: Init, *, number: int) -> None:
        traffic = Traffic(
            link=link,
            number=number,
            mailbox=self.mailbox,
            settings=self.settings,
            dropped=self.dropped,
            log=self.log,
            clock=self.clock,
            idle=Load(0, 0, 0, self.info.num_pages),
        )
        try:
            problem = self._run(traffic, init)
        finally:
            self.mailbox.lend(None)
            # On every way out, an error included; a link that is lost takes no notice.
            link.say_death()
            link.close(self.settings.linger_s)
        if problem is not None:
            lost = tuple(traffic.running)
            self.log.warning(
                "lost the front end: %s; %d request(s) of its clients end", problem, len(lost)
            )
            self.mailbox.lose(number, lost)

    def _run(self, traffic: Traffic, init: Init) -> str | None:
        traffic.greet()
        self.mailbox.lend(traffic.send_posts)
        is_announced = False
        while not self.mailbox.is_stopping:
            traffic.step()
            if traffic.problem is not None:
                return traffic.problem
            if not is_announced and traffic.link.is_connected:
                is_announced = True
                self.log.info("connected to the front end at %s", shown(self.address))
                self.on_connected(init)
        with self.mailbox.sending:
            traffic.write()
        return None
