# SPDX-License-Identifier: MIT
"""The Redis store: the contract, and what happens to servers. Debian: apt-get install redis."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import define, field

from tokenspeed_l3.store import StoreError
from tokenspeed_l3.store_contract import StoreContract, blank, get, names, page_of, put
from tokenspeed_l3.stores.redis import RedisStore
from tokenspeed_l3.stores.resp import Connection, ReplyError, Server, parse_server

WAIT_S = 60.0
PROGRAM = shutil.which("redis-server")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no redis-server here")


@define
class RedisBench:
    """A server of its own, at a socket and a port."""

    folder: Path
    options: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    @property
    def path(self) -> str:
        return str(self.folder / "s")

    def start(self) -> None:
        """Run the server and wait until it answers."""
        self.process = subprocess.Popen(
            [
                *(str(PROGRAM), "--unixsocket", self.path, "--bind", "127.0.0.1"),
                *("--port", str(self.port), "--save", "", "--dir", str(self.folder)),
                *self.options,
            ],
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + WAIT_S
        while not self._answers():
            assert time.monotonic() < end, "redis-server did not start"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def open(self, **options: object) -> RedisStore:
        """A store on it."""
        return RedisStore({"location": self.path} | options, buffers=())

    def connect(self) -> Connection:
        """A connection past the store."""
        connection = Connection(Server(path=self.path))
        connection.open()
        return connection

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Set the value anew."""
        connection, name = self.connect(), self._name(key)
        data = connection.ask([b"GET", name])
        assert isinstance(data, bytes)
        connection.ask([b"SET", name, change(data)])
        connection.close()

    def swap(self, first: str, second: str) -> None:
        """Exchange two values."""
        connection, one, other = self.connect(), self._name(first), self._name(second)
        for pair in ((one, b"aside"), (other, one), (b"aside", other)):
            connection.ask([b"RENAME", *pair])
        connection.close()

    def _name(self, key: str) -> bytes:
        connection = self.connect()
        generation = connection.ask([b"GET", f"tokenspeed-l3:g:{key.partition('/')[0]}".encode()])
        connection.close()
        assert isinstance(generation, bytes)
        return b"tokenspeed-l3:o:" + generation + b":" + key.encode()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            connection = self.connect()
            try:
                connection.ask([b"PING"])
                return True
            except ReplyError as error:
                return str(error).startswith("NOAUTH")
            finally:
                connection.close()
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisBench]:
    """A server for all tests that leave it as it is."""
    bench = RedisBench(tmp_path_factory.mktemp("r"))
    bench.start()
    yield bench
    bench.kill()


@pytest.fixture
def bench(server: RedisBench) -> RedisBench:
    """The server, empty."""
    connection = server.connect()
    connection.ask([b"FLUSHALL"])
    connection.close()
    return server


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[..., RedisBench]]:
    """Makes a server that a test may do anything with."""
    made: list[RedisBench] = []

    def make(*options: str) -> RedisBench:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        made.append(RedisBench(tmp_path, options, port=port))
        made[0].start()
        return made[0]

    yield make
    if made and made[0].process is not None:
        made[0].kill()


class TestContract(StoreContract):
    """What every store must do."""


def test_a_server_that_was_killed_is_an_error_until_it_is_back(
    own: Callable[..., RedisBench],
) -> None:
    """While the server is away every call raises; started anew, empty, it is of use at once."""
    server = own()
    store, keys = server.open(), names("killed", 3)
    put(store, keys, size=1000)
    server.kill()
    calls: list[Callable[[], object]] = [
        lambda: put(store, keys, size=1000),
        lambda: get(store, keys[0], size=1000),
        lambda: store.batch_exists(keys),
        lambda: store.remove_by_prefix("killed/"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=r"Redis at .*"):
            call()
    server.start()
    assert not any(store.batch_exists(keys))
    assert all(put(store, keys, size=1000).success)
    server.kill()
    server.start()
    assert get(store, keys[0], size=1000) == (None, False), "a dead connection is made anew"
    store.close()


def test_a_server_that_hangs_is_an_error(own: Callable[..., RedisBench]) -> None:
    """A server that does not answer raises after the timeout, and is of use again when it does."""
    server = own()
    store, keys = server.open(timeout=0.3), names("hangs", 3)
    put(store, keys, size=1000)
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(StoreError, match=r"no answer within 0\.3 s"):
        get(store, keys[0], size=1000)
    server.process.send_signal(signal.SIGCONT)
    assert get(store, keys[0], size=1000)[0] == bytes(page_of(keys[0], 1000))
    store.close()


def test_a_full_server_stores_no_more(own: Callable[..., RedisBench]) -> None:
    """Without memory objects are not stored, which is counted and no error; with it they are."""
    server = own("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    store, keys = server.open(), names("full", 80)
    stored = list(put(store, keys, size=100_000).success)
    assert any(stored)
    assert store.counts()["no_space"] == stored.count(False) > 0
    found = list(store.batch_get_into(keys, [blank(100_000) for _ in keys]).success)
    assert found == stored
    connection = server.connect()
    connection.ask([b"CONFIG", b"SET", b"maxmemory", b"100mb"])
    assert all(put(store, keys, size=100_000).success)
    connection.close()
    store.close()


def test_objects_of_a_removed_namespace_are_deleted(bench: RedisBench) -> None:
    """What nobody finds any more does not stay in memory."""
    store, connection = bench.open(), bench.connect()
    put(store, names("swept", 2500), size=10)
    assert store.remove_by_prefix("swept/")
    end = time.monotonic() + WAIT_S
    while connection.ask([b"DBSIZE"]) != 0:
        assert time.monotonic() < end
        time.sleep(0.01)
    connection.close()
    store.close()


def test_a_lost_generation_is_a_namespace_that_is_gone(bench: RedisBench) -> None:
    """Objects whose generation Redis evicted are missed, also after further puts."""
    store, keys, connection = bench.open(), names("evicted", 4), bench.connect()
    put(store, keys[:2], size=10)
    connection.ask([b"DEL", b"tokenspeed-l3:g:evicted"])
    assert not any(store.batch_exists(keys))
    put(store, keys[2:], size=10)
    assert list(store.batch_exists(keys)) == [False, False, True, True]
    connection.close()
    store.close()


def test_a_removal_that_is_refused_is_no_removal(own: Callable[..., RedisBench]) -> None:
    """A server that takes no writes, as a replica, still has the namespace: that is an error."""
    server = own()
    store, keys = server.open(), names("kept", 2)
    assert all(put(store, keys, size=10).success)
    connection = server.connect()
    connection.ask([b"CONFIG", b"SET", b"min-replicas-to-write", b"1"])
    connection.close()
    with pytest.raises(StoreError, match="NOREPLICAS"):
        store.remove_by_prefix(keys[0].partition("/")[0])
    assert all(store.batch_exists(keys))
    store.close()


def test_a_damaged_value_that_may_not_be_deleted_is_still_only_damaged(
    own: Callable[..., RedisBench],
) -> None:
    """A server that takes no writes: the value fails each time, and its neighbours are got."""
    server = own()
    store, keys = server.open(), names("stays", 2)
    put(store, keys, size=10)
    server.change(keys[0], lambda data: data[:-1] + b"!")
    connection = server.connect()
    connection.ask([b"CONFIG", b"SET", b"min-replicas-to-write", b"1"])
    connection.close()
    for _ in range(2):
        result = store.batch_get_into(keys, [blank(10), blank(10)])
        assert (list(result.success), list(result.failed)) == ([False, True], [True, False])
    store.close()


def test_what_is_no_value_is_damage_and_no_error(bench: RedisBench) -> None:
    """A list in the place of an object: its neighbours are got, and it can be put anew."""
    store, keys, connection = bench.open(), names("typed", 2), bench.connect()
    put(store, keys, size=10)
    connection.ask([b"UNLINK", bench._name(keys[0])])
    connection.ask([b"RPUSH", bench._name(keys[0]), b"x"])
    result = store.batch_get_into(keys, [blank(10), blank(10)])
    assert (list(result.success), list(result.failed)) == ([False, True], [True, False])
    assert all(put(store, keys, size=10).success)
    assert get(store, keys[0], size=10) == (bytes(page_of(keys[0], 10)), False)
    connection.close()
    store.close()


def test_objects_can_have_a_lifetime(bench: RedisBench) -> None:
    """With `ttl` an object goes by itself."""
    store, (key,) = bench.open(ttl="200ms"), names("ttl", 1)
    put(store, [key], size=10)
    end = time.monotonic() + WAIT_S
    while store.batch_exists([key])[0]:
        assert time.monotonic() < end
        time.sleep(0.01)
    store.close()


def test_ages_are_those_before_one_looked(bench: RedisBench) -> None:
    """The time since the last use is told, although looking may itself count as one."""
    store, keys, connection = bench.open(), names("aged", 2), bench.connect()
    put(store, keys, size=10)
    name = bench._name(keys[0])
    value = connection.ask([b"DUMP", name])
    assert isinstance(value, bytes)
    connection.ask([b"RESTORE", name, b"0", value, b"REPLACE", b"IDLETIME", b"5000"])
    ages = {each.key: each.age_s or 0.0 for each in store.objects()}
    assert ages[keys[0]] >= 5000 > ages[keys[1]]
    connection.close()
    store.close()


def test_what_nobody_finds_is_not_listed(bench: RedisBench) -> None:
    """Values of a generation that was forgotten, and of other programs, among many of ours."""
    store, connection = bench.open(), bench.connect()
    keys = [*names("listed", 1500), *names("more", 3)]
    put(store, [*keys, *names("lost", 2)], size=10)
    connection.ask([b"DEL", b"tokenspeed-l3:g:lost"])
    for name in (b"tokenspeed-l3:o:listed/x", b"tokenspeed-l3:o:\xff:listed/\xff", b"other"):
        connection.ask([b"SET", name, b"theirs"])
    assert {each.key: each.size for each in store.objects()} == dict.fromkeys(keys, 10)
    connection.close()
    store.close()


def test_a_value_shorter_than_its_head_is_listed_and_damaged(bench: RedisBench) -> None:
    """What is left of it is found by a check, as other damage is."""
    store, keys = bench.open(), names("short", 2)
    put(store, keys, size=10)
    bench.change(keys[0], lambda data: data[:5])
    assert {each.key: each.size for each in store.objects()} == {keys[0]: 0, keys[1]: 10}
    assert [store.check(key) is None for key in keys] == [False, True]
    store.close()


def test_who_may_not_read_is_told(own: Callable[..., RedisBench]) -> None:
    """A look that the server refuses is an error, and no empty or whole store."""
    server = own()
    store, keys, connection = server.open(), names("denied", 2), server.connect()
    put(store, keys, size=10)
    rules = [b"on", b">word", b"~*", b"+@all", b"-get"]
    connection.ask([b"ACL", b"SETUSER", b"looker", *rules])
    looker = server.open(username="looker", password="word")
    with pytest.raises(StoreError, match="NOPERM"):
        list(looker.objects())
    connection.ask([b"ACL", b"SETUSER", b"looker", b"resetkeys", b"+get", b"~tokenspeed-l3:g:*"])
    with pytest.raises(StoreError, match="NOPERM"):
        looker.check(keys[0])
    for each in (looker, store, connection):
        each.close()


def test_a_password_is_asked_for(own: Callable[..., RedisBench]) -> None:
    """A store names itself to a server that wants it, and is told when that fails."""
    server = own("--requirepass", "s3cret/word")
    where = f"127.0.0.1:{server.port}"
    with pytest.raises(StoreError, match="NOAUTH"):
        RedisStore({"location": f"//{where}"}, buffers=())
    with pytest.raises(StoreError, match="WRONGPASS") as told:
        RedisStore({"location": f"//:guess@{where}/0"}, buffers=())
    assert "guess" not in str(told.value)
    for options in (
        {"location": f"//:s3cret%2Fword@{where}/3"},
        {"location": f"//{where}", "username": "default", "password": "s3cret/word"},
    ):
        store = RedisStore(options, buffers=())
        assert all(put(store, names("secret", 1), size=10).success)
        store.close()


def test_what_is_no_redis_is_told() -> None:
    """Something else at the address is an error that shows what it said."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            connection, _ = other.accept()
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(StoreError, match=r"HTTP/1\.1 400"):
            RedisStore({"location": f"//127.0.0.1:{other.getsockname()[1]}/0"}, buffers=())
        thread.join()


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("", Server()),
        ("//example.org", Server(host="example.org")),
        ("//u:p%40@h:1/2", Server(host="h", port=1, db=2, username="u", password="p@")),
        ("/run/redis.sock", Server(path="/run/redis.sock")),
    ],
)
def test_addresses(location: str, expected: Server) -> None:
    """An address names a server, a database and a user, or a socket."""
    assert parse_server(location) == expected


@pytest.mark.parametrize(
    "location", ["host:6379", "//h/name", "//h:port", "//:sec/ret@h:1/0", "//u:1/secret@h", "//h:x"]
)
def test_wrong_addresses(location: str) -> None:
    """What is no address raises ValueError, which does not repeat what may be a password."""
    with pytest.raises(ValueError, match="expected") as raised:
        parse_server(location)
    assert "sec" not in str(raised.value)
