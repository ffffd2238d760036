# SPDX-License-Identifier: MIT
"""A thread that hears of peers whose connection broke, while the loop's thread waits elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

POLL_MS = 100
CLOSED = (zmq.ENOTSOCK, zmq.ETERM)
BROKEN = "its connection broke; it was killed or stopped"

Hear = Callable[[int, str], None]


class PeerWatch:
    """Reads the monitors of connections, each with its peer, and tells of each peer's end once."""

    def __init__(self, monitors: Sequence[tuple[int, zmq.Socket[bytes]]], hear: Hear) -> None:
        self._monitors = [*monitors]
        self._hear = hear
        self._ended: set[int] = set()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peer-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; then the monitors may be closed."""
        self._is_closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._listen()
        except zmq.ZMQError as error:
            # Whoever heard of an end closed the sockets, or the process is ending.
            if error.errno not in CLOSED:
                raise

    def _listen(self) -> None:
        poller = zmq.Poller()
        for _, monitor in self._monitors:
            poller.register(monitor, zmq.POLLIN)
        while not self._is_closing.is_set():
            ready = dict(poller.poll(POLL_MS))
            for peer, monitor in self._monitors:
                if monitor in ready:
                    parse_monitor_message(monitor.recv_multipart())
                    poller.unregister(monitor)
                    self._tell(peer)

    def _tell(self, peer: int) -> None:
        if peer not in self._ended:
            self._ended.add(peer)
            self._hear(peer, BROKEN)
