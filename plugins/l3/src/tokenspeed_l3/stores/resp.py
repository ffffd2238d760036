# SPDX-License-Identifier: MIT
"""A connection to Redis, for objects of some size: pages go to and from the socket without a copy.

The usual clients read a value into bytes of their own and join a command before they send it. Here
that halved the throughput, so this speaks the protocol (RESP2) itself; it needs little of it.
"""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from attrs import define, field, frozen

BUFFER = 1 << 16

Part: TypeAlias = bytes | memoryview
Reply: TypeAlias = "bytes | int | list[Reply] | ReplyError | None"
WRONG_TYPE = b"-WRONGTYPE "  # it is no value, but a list or the like


class ReplyError(Exception):
    """What the server refused, as a value: its text begins with a word for the kind."""


@frozen
class Server:
    """Where Redis is, and as whom one speaks to it."""

    host: str = "localhost"
    port: int = 6379
    path: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    timeout_s: float = 5.0

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


def parse_server(location: str) -> Server:
    """`//user:password@host:port/db` or the path of a socket. ValueError: it is neither."""
    if location.startswith("/") and not location.startswith("//"):
        return Server(path=location)
    url = urlsplit(location)
    db = url.path.strip("/") or "0"
    try:
        port = url.port or 6379
    except ValueError:
        port = 0
    # What is wrong may be a part of a password, so nobody is shown it.
    if (location and not location.startswith("//")) or not port or not db.isdigit():
        raise ValueError(
            "expected redis://host:port/db, db being a number, or redis:/path/of/socket, got no "
            "such address; is a password in it percent-encoded?"
        )
    return Server(
        host=url.hostname or "localhost",
        port=port,
        db=int(db),
        username=unquote(url.username or ""),
        password=unquote(url.password or ""),
    )


@define(eq=False)
class Connection:
    """One connection: commands are sent in order and answered in order."""

    server: Server
    _socket: socket.socket = field(init=False)
    _reader: io.BufferedReader = field(init=False)

    def open(self) -> None:
        """Connect and introduce oneself. OSError: nobody answers; ReplyError: refused."""
        server = self.server
        self._socket = _connect(server)
        self._reader = self._socket.makefile("rb")
        try:
            if server.password:
                user = [server.username.encode()] if server.username else []
                self.ask([b"AUTH", *user, server.password.encode()])
            if server.db:
                self.ask([b"SELECT", b"%d" % server.db])
        except (OSError, ReplyError):
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self._reader.close()
        with suppress(OSError):
            self._socket.close()

    def send(self, command: Sequence[bytes], *, value: Sequence[Part] = ()) -> None:
        """Send a command; the parts of `value` are together its last argument."""
        count = len(command) + bool(value)
        head = [b"*%d\r\n" % count, *(b"$%d\r\n%s\r\n" % (len(each), each) for each in command)]
        if not value:
            self._socket.sendall(b"".join(head))
            return
        head.append(b"$%d\r\n" % sum(map(len, value)))
        small, large = [bytes(each) for each in value[:-1]], value[-1]
        self._socket.sendall(b"".join([*head, *small]))
        self._socket.sendall(large)
        self._socket.sendall(b"\r\n")

    def ask(self, command: Sequence[bytes]) -> Reply:
        """Send a command and wait for its answer. ReplyError: it was refused."""
        self.send(command)
        reply = self.receive()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def ask_all(self, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
        """Send commands and wait for all answers, refusals among them."""
        for command in commands:
            self.send(command)
        return [self.receive() for _ in commands]

    def receive(self) -> Reply:
        """The next answer."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"+":
                return rest
            case b"-":
                return ReplyError(rest.decode(errors="replace"))
            case b":":
                return int(rest)
            case b"$":
                return None if rest == b"-1" else self._bulk(int(rest))
            case b"*":
                return [self.receive() for _ in range(max(0, int(rest)))]
        raise ConnectionError(f"expected an answer of Redis, got {line[:20]!r}")

    def receive_into(
        self, head: memoryview, page: memoryview, *, seen: Callable[[memoryview], None]
    ) -> bool | None:
        """The next answer, a value as long as both views together: true, it is in them, and `seen`
        was given each part of the page as it came; false, it is something else; None, there is
        none. ReplyError: refused."""
        line = self._line()
        if line.startswith(WRONG_TYPE):
            return False
        if line.startswith(b"-"):
            raise ReplyError(line[1:].decode(errors="replace"))
        if not line.startswith(b"$"):
            raise ConnectionError(f"expected a value of Redis, got {line[:20]!r}")
        size = int(line[1:])
        if size < 0:
            return None
        fits = size == len(head) + len(page)
        if fits:
            self._fill(head)
            for part in self._parts(page):
                seen(part)
        for view in () if fits else _scratch(size):
            self._fill(view)
        self._fill(memoryview(bytearray(2)))
        return fits

    def _bulk(self, size: int) -> bytes:
        data = bytearray(size + 2)
        self._fill(memoryview(data))
        return bytes(data[:size])

    def _line(self) -> bytes:
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server hung up")
        return line[:-2]

    def _fill(self, view: memoryview) -> None:
        for _ in self._parts(view):
            pass

    def _parts(self, view: memoryview) -> Iterator[memoryview]:
        """Fill a view; its parts as they come."""
        while view:
            count = self._reader.readinto1(view)
            if not count:
                raise ConnectionError("the server hung up")
            yield view[:count]
            view = view[count:]


def _connect(server: Server) -> socket.socket:
    if server.path:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(server.timeout_s)
        try:
            connection.connect(server.path)
        except OSError:
            connection.close()
            raise
        return connection
    connection = socket.create_connection((server.host, server.port), server.timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if server.tls:
        context = ssl.create_default_context()
        return context.wrap_socket(connection, server_hostname=server.host)
    return connection


def _scratch(size: int) -> Iterator[memoryview]:
    """Places for a value nobody wants."""
    view = memoryview(bytearray(min(size, BUFFER)))
    while size > 0:
        yield view[:size]
        size -= len(view)
