# SPDX-License-Identifier: MIT
"""Ranks as processes, on one host or many: a ROUTER each, and a DEALER to every peer.

ZMQ's own heartbeats run on its I/O thread, so a rank that computes for long is still heard, and one
that is killed or stopped is noticed in seconds. What a peer sent before it was gone is still read.

A heartbeat waits behind what a connection could not write yet, and is not missed until it was sent:
a stopped peer that is sent much would never be noticed. So each peer has a second connection, its
pulse, that carries nothing else.
"""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Callable, Mapping

import zmq
from attrs import define, field, frozen

from tokenspeed_core.keyed_address import ListenKey, connect
from tokenspeed_core.ranks.mesh import RankError
from tokenspeed_core.ranks.peer_watch import PeerWatch

PAYLOAD, FAREWELL = b"\x00", b"\x01"
FRAMES = 2
# How often a wait looks whether the peer has ended, and how long what it sent last may take.
SLICE_S, LAST_WORDS_S = 0.1, 0.05


@frozen
class MeshLimits:
    """Seconds. A peer without a heartbeat for `dead_s` is gone; one that lives and sends nothing
    for `hung_s` hangs; all must have connected within `connect_s`."""

    beat_s: float = 1.0
    dead_s: float = 3.0
    hung_s: float = 600.0
    connect_s: float = 120.0
    linger_s: float = 1.0


def _nobody(reason: str) -> None:
    """Nobody wants to hear of a peer's end."""


@define(eq=False)
class ZmqMesh:
    """One rank's end. Bind first, exchange addresses, then `connect`.

    `on_end` hears at once, on another thread, that a peer is gone: for who waits elsewhere.

    `token` is the deployment's secret: a connection that does not begin with it is not heard.
    """

    rank: int
    token: bytes = b""
    limits: MeshLimits = field(factory=MeshLimits)
    on_end: Callable[[str], None] = field(default=_nobody, init=False)
    _context: zmq.Context[zmq.Socket[bytes]] = field(factory=zmq.Context, init=False)
    _router: zmq.Socket[bytes] = field(init=False)
    _dealers: dict[int, zmq.Socket[bytes]] = field(factory=dict, init=False)
    _pulses: list[zmq.Socket[bytes]] = field(factory=list, init=False)
    _monitors: list[tuple[int, zmq.Socket[bytes]]] = field(factory=list, init=False)
    _arrived: dict[int, deque[bytes]] = field(factory=dict, init=False)
    _ended: dict[int, str] = field(factory=dict, init=False)
    _greeted: set[int] = field(factory=set, init=False)
    _watch: PeerWatch | None = field(default=None, init=False)
    _limit_ms: int = field(default=-1, init=False)

    def bind(self, address: str) -> str:
        """Listen, and return the address for the peers. A tcp address may leave the port out; the
        one returned has it, and a key without which nobody can connect."""
        self._router = self._context.socket(zmq.ROUTER)
        self._limit_life(self._router)
        if not address.startswith("tcp://"):
            self._router.bind(address)
            return address
        key = ListenKey.new()
        key.guard(self._router)
        self._router.bind(address if address.count(":") > 1 else f"{address}:*")
        return key.told(self._router.getsockopt_string(zmq.LAST_ENDPOINT))

    def connect(
        self, addresses: Mapping[int, str], check: Callable[[], None] = lambda: None
    ) -> None:
        """Connect to every peer and wait until each did. RankError names one that did not.
        `check` is called while it waits, and may raise."""
        for peer in sorted(addresses):
            if peer != self.rank:
                self._dial(peer, addresses[peer])
        self._watch = PeerWatch(self._monitors, self._hear_end)
        for peer in self._dealers:
            self.send(peer, self.token)
        for peer in self._dealers:
            self._next(peer, self.limits.connect_s, check=check)

    def send(self, peer: int, payload: bytes) -> None:
        """Hand a payload to ZMQ's I/O thread. RankError: the peer is gone."""
        if peer in self._ended:
            self._raise_end(peer)
        try:
            self._dealers[peer].send_multipart((PAYLOAD, payload), zmq.DONTWAIT, copy=False)
        except zmq.Again:
            raise RankError(f"rank {peer} takes nothing more from rank {self.rank}") from None

    def receive(self, peer: int) -> bytes:
        """The peer's next payload. RankError: it is gone, or hangs."""
        return self._next(peer, self.limits.hung_s)

    def fail(self, reason: str) -> None:
        """Send the reason to whoever still lives."""
        for dealer in self._dealers.values():
            try:
                dealer.send_multipart((FAREWELL, reason.encode()), zmq.DONTWAIT)
            except zmq.ZMQError:
                continue

    def close(self) -> None:
        """Close every socket; farewells have a moment to leave."""
        if self._watch is not None:
            self._watch.close()
        if self._monitors:
            for watched in (*self._dealers.values(), *self._pulses):
                watched.disable_monitor()
        for _, monitor in self._monitors:
            monitor.close(linger=0)
        self._monitors.clear()
        self._context.destroy(linger=int(self.limits.linger_s * 1000))

    # ---------------------------------------------------------------------------------------------

    def _dial(self, peer: int, address: str) -> None:
        identity = self.rank.to_bytes(4, "little")
        self._dealers[peer] = self._connected(peer, address, identity=identity)
        self._pulses.append(self._connected(peer, address))
        self._arrived[peer] = deque()

    def _connected(self, peer: int, address: str, *, identity: bytes = b"") -> zmq.Socket[bytes]:
        """A connection to a peer that is watched; without an identity the peer hears nothing."""
        dealer = self._context.socket(zmq.DEALER)
        self._limit_life(dealer)
        if identity:
            dealer.setsockopt(zmq.IDENTITY, identity)
        self._monitors.append((peer, dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)))
        connect(dealer, address)
        return dealer

    def _limit_life(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(self.limits.beat_s * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self.limits.dead_s * 1000))
        socket.setsockopt(zmq.LINGER, int(self.limits.linger_s * 1000))
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)

    def _next(
        self, peer: int, limit_s: float, *, check: Callable[[], None] = lambda: None
    ) -> bytes:
        arrived = self._arrived[peer]
        until = time.monotonic() + limit_s
        while not arrived:
            check()
            if peer in self._ended and not self._wait(LAST_WORDS_S):
                self._raise_end(peer)
            left = until - time.monotonic()
            if left <= 0:
                raise RankError(
                    f"rank {peer} lives but sent rank {self.rank} nothing for {limit_s:g} s; it "
                    "hangs, or left the order of exchanges"
                )
            self._wait(min(left, SLICE_S))
        return arrived.popleft()

    def _wait(self, seconds: float) -> bool:
        """Take a message, once one comes; whether one came.

        The socket's own time limit costs half of what polling it first does.
        """
        limit_ms = int(seconds * 1000) + 1
        if limit_ms != self._limit_ms:
            self._router.setsockopt(zmq.RCVTIMEO, limit_ms)
            self._limit_ms = limit_ms
        try:
            self._take(*self._router.recv_multipart())
        except zmq.Again:
            return False
        return True

    def _hear_end(self, peer: int, reason: str) -> None:
        """On the watch's thread."""
        self._ended.setdefault(peer, reason)
        self.on_end(f"rank {peer} ended: {self._ended[peer]}")

    def _raise_end(self, peer: int) -> None:
        raise RankError(f"rank {peer} ended: {self._ended[peer]}")

    def _take(self, identity: bytes, *frames: bytes) -> None:
        peer = int.from_bytes(identity, "little")
        if peer not in self._arrived or len(frames) != FRAMES:
            return  # no rank of ours; whoever reaches the port may send anything
        kind, payload = frames
        if peer not in self._greeted:
            if kind == PAYLOAD and hmac.compare_digest(payload, self.token):
                self._greeted.add(peer)
                self._arrived[peer].append(payload)
        elif kind == FAREWELL:
            self._ended[peer] = payload.decode(errors="replace")
        else:
            self._arrived[peer].append(payload)
