# SPDX-License-Identifier: MIT
"""`redis://host:port/db`: a value an object, in a Redis that limits its own memory.

The objects of a namespace are under a generation, a random text kept at a key of its own. To
forget the namespace is to delete that key: one command, after which nobody finds the objects; they
are deleted in the background. A generation that Redis evicts is a namespace that is gone, and the
next put begins another.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

from attrs import define, evolve, field, frozen
from attrs.validators import ge, gt, matches_re

from tokenspeed_l3.calls import RunningCalls
from tokenspeed_l3.frames import HeadInParts, head_of, head_size, problem_of
from tokenspeed_l3.store import IoResult, StoredObject, StoreError
from tokenspeed_l3.store_options import read_options
from tokenspeed_l3.stores.resp import Connection, Reply, ReplyError, Server, parse_server

Answer = TypeVar("Answer")

# Bytes of values that are asked for and not yet read. More would pile up in the server, and with
# several connections drive each other from the processors' caches: 8 MiB took half the speed.
WINDOW = 1 << 20
FULL = "OOM"


@frozen(kw_only=True)
class RedisOptions:
    """The settings of a Redis store: the server, what its keys begin with, how long a call may
    wait for it, and after how many seconds an object goes (0: when Redis evicts it)."""

    location: str = "//localhost:6379/0"
    prefix: str = field(default="tokenspeed-l3", validator=matches_re(r"[A-Za-z0-9._:-]+"))
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    timeout: float = field(default=5.0, validator=gt(0))
    ttl: float = field(default=0.0, validator=ge(0))

    def server(self) -> Server:
        """Where and as whom to connect. ValueError: the location is none."""
        found = evolve(parse_server(self.location), tls=self.tls, timeout_s=self.timeout)
        if self.password:
            found = evolve(found, username=self.username, password=self.password)
        return found


class RedisStore:
    """Objects in Redis."""

    def __init__(self, options: Mapping[str, object], *, buffers: Sequence[memoryview]) -> None:
        self._options = read_options(RedisOptions, options, store="redis")
        self._prefix = self._options.prefix
        self._pool = _Pool(self._options.server())
        self._counts = Counter({"failed": 0, "no_space": 0})
        self._calls = RunningCalls()
        self._closing = threading.Event()
        self._sweeps: list[threading.Thread] = []
        self._run(lambda connection: connection.ask([b"PING"]))

    @property
    def failures_retire(self) -> bool:
        """Nothing touches a page once a call has returned."""
        return True

    def batch_exists(self, keys: Sequence[str]) -> list[bool]:
        """Which keys have a value."""

        def ask(connection: Connection) -> list[bool]:
            found = self._names(connection, keys)
            replies = iter(_granted(connection, [[b"EXISTS", each] for each in found if each]))
            return [each is not None and next(replies) == 1 for each in found]

        return self._run(ask)

    def batch_get_into(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Read values into pages."""
        pairs = list(zip(keys, pages, strict=True))
        return self._run(lambda connection: self._get(connection, pairs))

    def batch_put_from(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Set values from pages."""
        pairs = list(zip(keys, pages, strict=True))
        return IoResult(self._run(lambda connection: self._put(connection, pairs)))

    def remove_by_prefix(self, prefix: str) -> bool:
        """Forget a namespace's generation."""
        name = self._generation_name(prefix.removesuffix("/"))
        generation, _ = self._run(
            lambda connection: _granted(connection, [[b"GET", name], [b"UNLINK", name]])
        )
        if isinstance(generation, bytes):
            pattern = b"%s:o:%s:*" % (self._prefix.encode(), generation)
            sweep = threading.Thread(target=self._sweep, args=[pattern], daemon=True)
            self._sweeps = [each for each in self._sweeps if each.is_alive()] + [sweep]
            sweep.start()
        return True

    def close(self) -> None:
        """Wait for running calls and hang up."""
        self._closing.set()
        if self._calls.close():
            for sweep in self._sweeps:
                sweep.join()
            self._pool.close()

    def counts(self) -> Mapping[str, int]:
        """Objects that were damaged, and that Redis had no memory for."""
        return dict(self._counts)

    # --- for commands ----------------------------------------------------------------------------

    def objects(self) -> Iterator[StoredObject]:
        """All values of namespaces that are not forgotten."""
        generations, start = self._generations(), f"{self._prefix}:o:".encode()
        for found in self._scan(start + b"*"):
            ours: dict[bytes, str] = {}
            for name in found:
                generation, _, key = name.removeprefix(start).partition(b":")
                if generations.get(key.partition(b"/")[0]) == generation:
                    ours[name] = key.decode(errors="replace")
            if ours:
                yield from self._look(ours)

    def check(self, key: str) -> str | None:
        """What is wrong with a value."""

        def ask(connection: Connection) -> Reply:
            (name,) = self._names(connection, [key])
            if name is None:
                return None
            (reply,) = _unnoticed(connection, [[b"GET", name]])
            if isinstance(reply, ReplyError):
                raise reply
            return reply

        data = self._run(ask)
        if not isinstance(data, bytes):
            raise KeyError(key)
        return problem_of(key, data)

    def remove(self, key: str) -> bool:
        """Delete one value."""

        def ask(connection: Connection) -> bool:
            (name,) = self._names(connection, [key])
            return name is not None and connection.ask([b"UNLINK", name]) == 1

        return self._run(ask)

    def _generations(self) -> dict[bytes, Reply]:
        start = f"{self._prefix}:g:".encode()
        names = [name for found in self._scan(start + b"*") for name in found]
        commands = [[b"GET", name] for name in names]
        replies = self._run(lambda connection: _granted(connection, commands))
        return {name.removeprefix(start): each for name, each in zip(names, replies, strict=True)}

    def _look(self, keys: Mapping[bytes, str]) -> Iterator[StoredObject]:
        """Values as objects, by the names and keys of some."""
        # In this order: a server that does not know NO-TOUCH takes STRLEN for a use.
        kinds = ([b"OBJECT", b"IDLETIME"], [b"STRLEN"])
        commands = [[*kind, name] for name in keys for kind in kinds]
        replies = iter(self._run(lambda connection: _unnoticed(connection, commands)))
        for key, idle, size in zip(keys.values(), replies, replies, strict=True):
            if isinstance(size, int) and size:
                # One shorter than its head is damaged, and listed to be found by `check`. Under a
                # policy by frequency Redis knows no time of use.
                page = max(0, size - head_size(key))
                yield StoredObject(key, page, idle if isinstance(idle, int) else None)

    # --- inside ----------------------------------------------------------------------------------

    def _get(self, connection: Connection, pairs: Sequence[tuple[str, memoryview]]) -> IoResult:
        success, failed = [False] * len(pairs), [False] * len(pairs)
        named = self._names(connection, [key for key, _ in pairs])
        wanted = [(index, name) for index, name in enumerate(named) if name is not None]
        sent, waiting = 0, 0
        for done, (index, _) in enumerate(wanted):
            while sent < len(wanted) and (sent == done or waiting < WINDOW):
                connection.send([b"GET", wanted[sent][1]])
                waiting += len(pairs[wanted[sent][0]][1])
                sent += 1
            key, page = pairs[index]
            waiting -= len(page)
            head, expected = bytearray(head_size(key)), HeadInParts(key, len(page))
            found = connection.receive_into(memoryview(head), page, seen=expected.add)
            success[index] = bool(found) and head == expected.head()
            failed[index] = found is not None and not success[index]
        if bad := [name for index, name in wanted if failed[index]]:
            self._counts["failed"] += len(bad)
            # Where they may not be deleted they stay, and fail each time.
            connection.ask_all([[b"UNLINK", *bad]])
        return IoResult(success, failed)

    def _put(self, connection: Connection, pairs: Sequence[tuple[str, memoryview]]) -> list[bool]:
        named = self._names(connection, [key for key, _ in pairs], begins=True)
        stored = [False] * len(pairs)
        wanted = [(index, name) for index, name in enumerate(named) if name is not None]
        lengths = connection.ask_all([[b"STRLEN", name] for _, name in wanted])
        sent: list[int] = []
        for (index, name), length in zip(wanted, lengths, strict=True):
            key, page = pairs[index]
            stored[index] = not self._options.ttl and length == head_size(key) + len(page)
            if not stored[index]:
                connection.send(self._set(name), value=[head_of(key, page), page])
                sent.append(index)
        replies = [connection.receive() for _ in sent]
        for index, reply in zip(sent, replies, strict=True):
            stored[index] = not self._is_full(reply)
        self._counts["no_space"] += stored.count(False)
        return stored

    def _set(self, name: bytes) -> list[bytes]:
        """The command in front of a value."""
        ttl = self._options.ttl
        return [b"PSETEX", name, b"%d" % max(1, 1000 * ttl)] if ttl else [b"SET", name]

    def _is_full(self, reply: Reply) -> bool:
        if isinstance(reply, ReplyError) and not str(reply).startswith(FULL):
            raise reply
        return isinstance(reply, ReplyError)

    def _names(
        self, connection: Connection, keys: Sequence[str], *, begins: bool = False
    ) -> list[bytes | None]:
        """The name of each key's value, None where its namespace has no generation; `begins` gives
        it one, unless there is no memory."""
        spaces = list(dict.fromkeys(key.partition("/")[0] for key in keys))
        names = [self._generation_name(each) for each in spaces]
        commands = [[b"GET", name] for name in names]
        if begins:
            fresh = [[b"SET", name, uuid.uuid4().hex.encode(), b"NX"] for name in names]
            commands = fresh + commands
        replies = connection.ask_all(commands)
        for reply in replies:
            self._is_full(reply)
        found = dict(zip(spaces, replies[-len(names) :] if names else [], strict=True))
        start = f"{self._prefix}:o:".encode()
        return [
            b"%s%s:%s" % (start, generation, key.encode(errors="surrogatepass"))
            if isinstance(generation := found[key.partition("/")[0]], bytes)
            else None
            for key in keys
        ]

    def _generation_name(self, namespace: str) -> bytes:
        return f"{self._prefix}:g:{namespace}".encode(errors="surrogatepass")

    def _scan(self, pattern: bytes) -> Iterator[list[bytes]]:
        """The names that match, some at a time; one may come twice."""
        cursor = b"0"
        while True:
            command = [b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000"]
            reply = self._run(lambda connection, command=command: connection.ask(command))  # type: ignore[misc]  # called here
            cursor, found = cast(tuple[bytes, list[bytes]], reply)
            yield found
            if cursor == b"0":
                return

    def _sweep(self, pattern: bytes) -> None:
        """Delete the values of a generation nobody finds any more."""
        try:
            for found in self._scan(pattern):
                if self._closing.is_set():
                    return
                if found:
                    self._run(lambda connection, found=found: connection.ask([b"UNLINK", *found]))  # type: ignore[misc]  # called here
        except StoreError:
            # What stays is out of reach, and goes when Redis evicts it.
            return

    def _run(self, use: Callable[[Connection], Answer]) -> Answer:
        with self._calls, self._errors():
            return self._pool.run(use)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            limit = f"no answer within {self._options.timeout:g} s"
            raise StoreError(f"Redis at {self._pool.server}: {limit}") from error
        except (OSError, ReplyError) as error:
            raise StoreError(f"Redis at {self._pool.server}: {error}") from error


def _granted(connection: Connection, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
    """The answers to commands. ReplyError: one was refused, such as a write to a replica."""
    replies = connection.ask_all(commands)
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
    return replies


def _unnoticed(connection: Connection, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
    """The answers to commands that are no use of what they name: else a look at all objects would
    make them equally young. Redis before 7.2 refuses that, and counts the look."""
    switch = [b"CLIENT", b"NO-TOUCH"]
    return connection.ask_all([[*switch, b"ON"], *commands, [*switch, b"OFF"]])[1:-1]


@define(eq=False)
class _Pool:
    """Connections that are open and not in use."""

    server: Server
    _idle: list[Connection] = field(init=False, factory=list)
    _lock: threading.Lock = field(init=False, factory=threading.Lock)

    def run(self, use: Callable[[Connection], Answer]) -> Answer:
        """Use a connection. One that was idle may be dead because the server began anew: then all
        are dropped, and the call is made once more, which repeats no harm."""
        if (connection := self._take()) is not None:
            try:
                return self._use(connection, use)
            except ConnectionError:
                self.close()
        connection = Connection(self.server)
        connection.open()
        return self._use(connection, use)

    def close(self) -> None:
        """Close the idle ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _use(self, connection: Connection, use: Callable[[Connection], Answer]) -> Answer:
        is_usable = False
        try:
            answer = use(connection)
            is_usable = True
        finally:
            # After an error nobody knows what still comes.
            if not is_usable:
                connection.close()
        with self._lock:
            self._idle.append(connection)
        return answer
