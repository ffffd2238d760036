# SPDX-License-Identifier: MIT
"""The S3 store against a server of its own: the contract, and what happens to servers."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from attrs import define, field

from tokenspeed_l3.store import StoreError
from tokenspeed_l3.store_contract import StoreContract, get, names, page_of, put

if TYPE_CHECKING:
    from obstore.store import S3Store as Bucket

    from tokenspeed_l3.stores.s3 import S3Store

WAIT_S = 60.0
ENVIRONMENT = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
PROGRAM = shutil.which("rclone", path=ENVIRONMENT)
# The last flag: else a read is cut short when its file is replaced by an equal one meanwhile, which
# no store of objects does.
SERVE = ("serve", "s3", "--auth-key", "who,secret", "--local-no-check-updated")

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no rclone here; the extra `test` brings one"),
    pytest.mark.skipif(not importlib.util.find_spec("obstore"), reason="without the extra `s3`"),
]


@define
class S3Bench:
    """A server whose buckets are folders."""

    folder: Path
    port: int
    prefix: str = ""
    process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def start(self) -> None:
        """Run the server and wait until it answers."""
        (self.folder / "bucket").mkdir(exist_ok=True)
        command = [str(PROGRAM), *SERVE, f"--addr=127.0.0.1:{self.port}", str(self.folder)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        end = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            assert time.monotonic() < end, "rclone did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def open(self, **options: object) -> S3Store:
        """A store on it."""
        from tokenspeed_l3.stores.s3 import S3Store

        return S3Store(self._options() | options, buffers=())

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Put the object anew."""
        self._put(key, change(self._get(key)))

    def swap(self, first: str, second: str) -> None:
        """Exchange two objects."""
        one, other = self._get(first), self._get(second)
        self._put(first, other)
        self._put(second, one)

    def _options(self) -> dict[str, object]:
        return {
            "location": f"//bucket{self.prefix}",
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "us-east-1",
            "access_key_id": "who",
            "secret_access_key": "secret",
        }

    def _get(self, key: str) -> bytes:
        import obstore

        return bytes(obstore.get(self._bucket(), self._path(key)).bytes())

    def _put(self, key: str, data: bytes) -> None:
        import obstore

        obstore.put(self._bucket(), self._path(key), data, use_multipart=False)

    def _bucket(self) -> Bucket:
        from tokenspeed_l3.store_options import read_options
        from tokenspeed_l3.stores.s3 import S3Options

        return read_options(S3Options, self._options(), store="s3").bucket()

    def _path(self, key: str) -> str:
        from tokenspeed_l3.stores.directory import safe_name

        namespace, _, name = key.partition("/")
        return f"{self.prefix}/{safe_name(namespace)}/{safe_name(name)}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Bench]:
    """A server for all tests that leave it as it is."""
    bench = S3Bench(tmp_path_factory.mktemp("s3"), _free_port())
    bench.start()
    yield bench
    bench.kill()


@pytest.fixture
def bench(server: S3Bench, request: pytest.FixtureRequest) -> S3Bench:
    """A place of its own in the bucket."""
    server.prefix = f"/{request.node.name.replace('_', '-')}/kv"
    return server


@pytest.fixture
def own(tmp_path: Path) -> Iterator[S3Bench]:
    """A server that a test may do anything with."""
    bench = S3Bench(tmp_path, _free_port())
    bench.start()
    yield bench
    bench.kill()


class TestContract(StoreContract):
    """What every store must do."""

    damages = 4


def test_a_server_that_was_killed_is_an_error_until_it_is_back(own: S3Bench) -> None:
    """While the server is away every call raises; back again, it has what it had."""
    store, keys = own.open(retries=0, timeout=2), names("killed", 3)
    put(store, keys, size=1000)
    own.kill()
    calls: list[Callable[[], object]] = [
        lambda: put(store, keys, size=1000),
        lambda: get(store, keys[0], size=1000),
        lambda: store.batch_exists(keys),
        lambda: store.remove_by_prefix("killed/"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="//bucket at http"):
            call()
    own.start()
    assert get(store, keys[0], size=1000)[0] == bytes(page_of(keys[0], 1000))
    store.close()


def test_a_server_that_hangs_is_an_error(own: S3Bench) -> None:
    """A server that does not answer raises after the timeout, and is of use again when it does."""
    store, keys = own.open(retries=0, timeout="500ms"), names("hangs", 3)
    put(store, keys, size=1000)
    assert own.process is not None
    own.process.send_signal(signal.SIGSTOP)
    with pytest.raises(StoreError):
        get(store, keys[0], size=1000)
    own.process.send_signal(signal.SIGCONT)
    assert get(store, keys[0], size=1000)[0] == bytes(page_of(keys[0], 1000))
    store.close()


def test_a_wrong_secret_is_told(server: S3Bench) -> None:
    """A store that may not enter is not opened."""
    with pytest.raises(StoreError, match="403 Forbidden"):
        server.open(secret_access_key="guess")


def test_a_missing_bucket_is_told(server: S3Bench) -> None:
    """A bucket that does not exist is no empty store."""
    with pytest.raises(StoreError, match=r"//nowhere/kv at http.* 404 "):
        server.open(location="//nowhere/kv")
