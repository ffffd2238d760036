# SPDX-License-Identifier: MIT
"""The thread that hears of broken connections."""

from __future__ import annotations

import threading

import zmq

from tokenspeed_core.ranks.peer_watch import PeerWatch


def test_whoever_hears_of_an_end_may_close_everything() -> None:
    """Two peers end at once; the first one's hearer closes all sockets, on the watch's own thread:
    the thread ends, and raises nothing."""
    context = zmq.Context()
    server = context.socket(zmq.ROUTER)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    dealers = [context.socket(zmq.DEALER) for _ in range(2)]
    monitors = [(peer, each.get_monitor_socket(zmq.EVENT_ALL)) for peer, each in enumerate(dealers)]
    told: list[int] = []
    failed: list[object] = []
    before, threading.excepthook = threading.excepthook, failed.append
    have_ended = threading.Event()

    def hear(peer: int, reason: str) -> None:
        told.append(peer)
        for dealer in dealers:
            dealer.disable_monitor()
        for _, monitor in monitors:
            monitor.close(linger=0)
        have_ended.set()

    try:
        for dealer in dealers:
            dealer.connect(f"tcp://127.0.0.1:{port}")
        for _, monitor in monitors:
            assert monitor.poll(10_000)
        watch = PeerWatch(monitors, hear)
        assert have_ended.wait(10)
        watch.close()
    finally:
        threading.excepthook = before
        context.destroy(linger=0)
    assert (len(told), failed) == (1, [])
