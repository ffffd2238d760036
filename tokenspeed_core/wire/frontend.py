# SPDX-License-Identifier: MIT
"""An engine's front end over ZMQ: our own client's, or a gateway's.

A thread of the frontend's own does everything with sockets but to send what can be sent at once,
which the loop does itself. A slow reader costs the loop nothing: past a bound, or a time, it counts
as gone, its requests are ended and the engine dials again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tokenspeed_core.errors import EngineError
from tokenspeed_core.keyed_address import shown
from tokenspeed_core.wire.carrier import Carrier
from tokenspeed_core.wire.dropped import DroppedMessages
from tokenspeed_core.wire.handshake import Init, ParallelSizes, pack_ready
from tokenspeed_core.wire.mailbox import Mailbox, Posted, PostedBatch
from tokenspeed_core.wire.settings import WireSettings
from tokenspeed_hookspecs import ControlReply, EngineInfo, Load, Message, OutputBatch

# How much longer than its linger the thread may take to end.
JOIN_MARGIN_S = 2.0


class ZmqFrontend:
    """A `Frontend` that connects to the handshake address of a front end.

    Compose the engine with it, `start` it once the engine can serve, and `close` it on every way
    out: that sends what is left and the death notice.
    """

    def __init__(
        self,
        address: str,
        *,
        settings: WireSettings | None = None,
        on_connected: Callable[[Init], None] = lambda init: None,
        log: logging.Logger | None = None,
    ) -> None:
        self.is_closed = False
        self.settings = settings or WireSettings()
        self._address = address
        self._on_connected = on_connected
        self._log = log or logging.getLogger("tokenspeed")
        self._mailbox = Mailbox(self.settings.max_queued)
        self._dropped = DroppedMessages(self._log, time.monotonic)
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    @property
    def num_dropped(self) -> int:
        """Messages that came in and could not be used."""
        return self._dropped.count

    def start(self, info: EngineInfo, sizes: ParallelSizes | None = None) -> None:
        """Start dialing; WireError if `info` cannot be told."""
        carrier = Carrier(
            address=self._address,
            info=info,
            registration=pack_ready(info, sizes or ParallelSizes()),
            mailbox=self._mailbox,
            settings=self.settings,
            dropped=self._dropped,
            clock=time.monotonic,
            log=self._log,
            on_connected=self._on_connected,
        )
        self._thread = threading.Thread(
            target=self._run, args=(carrier,), name="tokenspeed-wire", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Tell the loop that nothing more will come; it ends after its round."""
        self.is_closed = True

    def close(self) -> None:
        """Send what is left and the death notice, then free every socket."""
        self.is_closed = True
        self._mailbox.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self.settings.linger_s + JOIN_MARGIN_S)

    def receive(self, wait_s: float | None) -> list[Message]:
        """Everything that came since the last call; EngineError if the wire itself failed."""
        if self._failure is not None:
            raise self._failed() from self._failure
        return self._mailbox.take(wait_s)

    def send(self, outputs: OutputBatch, load: Load) -> None:
        """Take a round's chunks."""
        self._post(PostedBatch(outputs, load))

    def reply(self, reply: ControlReply) -> None:
        """Take the answer to a control request."""
        self._post(reply)

    def _post(self, post: Posted) -> None:
        try:
            self._mailbox.post(post)
        except Exception as error:
            raise self._failed() from error

    def _failed(self) -> EngineError:
        return EngineError(f"the wire to {shown(self._address)} failed")

    def _run(self, carrier: Carrier) -> None:
        try:
            carrier.run()
        except Exception as error:
            # The loop's owner has to know; it reads this in its next round.
            self._failure = error
            self._log.exception("the wire failed")
        finally:
            self._mailbox.wake.close()
