# SPDX-License-Identifier: MIT
"""Two ranks in two processes, joined by one socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from attrs import define, field

from tokenspeed_core.ranks.mesh import RankError

LENGTH = struct.Struct("<I")


@define(eq=False)
class PipeMesh:
    """One of two ranks' end; `limit_s` is how long the other may be silent."""

    rank: int
    peer: socket.socket
    limit_s: float
    on_end: Callable[[str], None] = field(default=lambda _: None, init=False)

    def send(self, peer: int, payload: bytes) -> None:
        """Write a payload."""
        try:
            self.peer.sendall(LENGTH.pack(len(payload)) + payload)
        except OSError as error:
            raise RankError(f"rank {peer} is gone: {error}") from error

    def receive(self, peer: int) -> bytes:
        """Read the next payload."""
        self.peer.settimeout(self.limit_s)
        try:
            (length,) = LENGTH.unpack(self._read(LENGTH.size))
            return self._read(length)
        except TimeoutError:
            raise RankError(
                f"rank {peer} sent nothing to rank {self.rank} for {self.limit_s:g} s; it hangs, "
                "or left the order of exchanges"
            ) from None
        except OSError as error:
            raise RankError(f"rank {peer} is gone: {error}") from error

    def fail(self, reason: str) -> None:
        """The peer sees the closed socket."""
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self.peer.close()

    def _read(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self.peer.recv(length - len(parts))
            if not part:
                raise RankError("the other rank ended")
            parts += part
        return bytes(parts)
