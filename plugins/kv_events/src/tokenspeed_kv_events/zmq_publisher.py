# SPDX-License-Identifier: MIT
"""A PUB socket for the batches, and a ROUTER for readers that missed some.

PUB keeps nothing for a reader that comes late or is slow. Such a reader sees a gap in the sequence
numbers, and asks the ROUTER for what it misses. Answers are sent a few at a time, so that a reader
far behind delays nobody.
"""

from __future__ import annotations

from time import monotonic

import zmq
from attrs import define

from tokenspeed_kv_events.endpoints import rank_endpoint
from tokenspeed_kv_events.publishers import Batch, PublisherSettings

SLICE = 64  # answers between two batches
MOST_READERS = 256  # that are answered at the same time
PATIENCE_S = 10.0  # with a reader that takes nothing
LINGER_MS = 1000  # for what was published right before the end
END = b"\xff" * 8


class ZmqPublisher:
    """Both sockets are made here and then used by one thread alone."""

    def __init__(self, settings: PublisherSettings) -> None:
        self._log = settings.log
        self._count_replay = settings.count_replay
        self._topic = settings.topic.encode()
        self._kept = Kept(settings.buffer_steps)
        self._readers: dict[bytes, Reader] = {}
        # The process's context: inproc addresses are known to their own context only.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._pub = self._open(zmq.PUB, settings.endpoint, settings=settings)
        self._router: zmq.Socket[bytes] | None = None
        if settings.replay_endpoint is not None:
            self._router = self._open(zmq.ROUTER, settings.replay_endpoint, settings=settings)
            self._router.router_mandatory = True  # a reader that is full or gone is noticed

    def _open(self, kind: int, endpoint: str, *, settings: PublisherSettings) -> zmq.Socket[bytes]:
        address = rank_endpoint(endpoint, settings.dp_rank)
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._sockets.append(socket)
        socket.linger = LINGER_MS
        socket.sndhwm = settings.hwm
        try:
            if settings.bind:
                socket.bind(address)
            else:
                socket.connect(address)
        except zmq.ZMQError as cause:
            self.close()
            raise OSError(
                f"kv events cannot be published at {address}: {cause}; is another engine there? "
                "kv_events.endpoint names another address"
            ) from cause
        return socket

    def publish(self, batch: Batch) -> None:
        """Keep a batch for those who will miss it, and send it."""
        self._kept.add(batch)
        frames = [self._topic, batch.sequence.to_bytes(8, "big"), batch.payload]
        self._pub.send_multipart(frames, zmq.NOBLOCK)

    def attend(self) -> bool:
        """Take what readers ask for, and send each of them some of it."""
        router = self._router
        if router is None:
            return False
        while len(self._readers) < MOST_READERS and router.poll(0):
            self._take(router.recv_multipart())
        answered = [self._answer(router, name) for name in list(self._readers)]
        return any(answered)

    def close(self) -> None:
        """Close the sockets; the context belongs to the process."""
        for socket in self._sockets:
            socket.close()

    def _take(self, frames: list[bytes]) -> None:
        """A request is a reader's address, an empty frame, and 8 bytes: where to begin."""
        if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
            sizes = [len(frame) for frame in frames[1:]]
            self._log.warning("ignored a replay request of frames of %s bytes, not [0, 8]", sizes)
            return
        start = int.from_bytes(frames[2], "big")
        self._readers[frames[0]] = Reader(max(start, self._kept.oldest), monotonic())
        self._count_replay()

    def _answer(self, router: zmq.Socket[bytes], name: bytes) -> bool:
        """Send a reader its next slice; whether there is more for it.

        One that takes nothing now keeps its place for a while; one that is gone loses it.
        """
        reader, end = self._readers[name], self._kept.end
        try:
            for sequence in range(reader.next, min(reader.next + SLICE, end)):
                payload = self._kept.get(sequence)
                if payload is not None:
                    answer = [name, b"", sequence.to_bytes(8, "big"), payload]
                    router.send_multipart(answer, zmq.NOBLOCK)
                reader.next, reader.since = sequence + 1, monotonic()
            if reader.next < end:
                return True
            router.send_multipart([name, b"", END, b""], zmq.NOBLOCK)
        except zmq.Again:
            if monotonic() - reader.since < PATIENCE_S:
                return False
        except zmq.ZMQError as error:
            self._log.debug("a reader left its replay: %s", error)
        del self._readers[name]
        return False


@define
class Reader:
    """One that replays: the next sequence number it gets, and since when it waits for it."""

    next: int
    since: float


class Kept:
    """The payloads of the last batches by sequence number; some numbers have none."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._payloads: dict[int, bytes] = {}
        self.end = 0

    @property
    def oldest(self) -> int:
        """The lowest sequence number that is kept, or the next one."""
        return next(iter(self._payloads), self.end)

    def add(self, batch: Batch) -> None:
        """Keep a batch, and forget the oldest if there are too many."""
        self.end = batch.sequence + 1
        self._payloads[batch.sequence] = batch.payload
        if len(self._payloads) > self._most:
            del self._payloads[self.oldest]

    def get(self, sequence: int) -> bytes | None:
        """A batch's payload, if it is kept."""
        return self._payloads.get(sequence)
