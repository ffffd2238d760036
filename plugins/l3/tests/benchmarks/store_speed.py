# SPDX-License-Identifier: MIT
"""How fast stores are, against what they stand on, in the same run.

    python plugins/l3/tests/benchmarks/store_speed.py [--bytes 737280] [--folder /var/cache]

The file store against plain files of the same size on the same disk, one after the other; Redis
against redis-benchmark over as many connections. Ratios, each a median of neighbouring turns, and
1 where one is below its limit.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tokenspeed_l3.store import Store
from tokenspeed_l3.stores.file import FileStore
from tokenspeed_l3.stores.redis import RedisStore
from tokenspeed_l3.stores.resp import Connection, parse_server

FILE_LIMIT, REDIS_LIMIT = 0.5, 0.7
OBJECTS, TURNS, WARM = 96, 7, 1
BATCH = 32
# A page of smollm2-135m: 16 tokens, 30 layers, keys and values, 3 heads of 64 numbers of 4 bytes.
PAGE_BYTES = 16 * 30 * 2 * 3 * 64 * 4


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--bytes", type=int, default=PAGE_BYTES, help="of an object")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk that is measured")
    given = parser.parse_args()
    ratios = [*files(given.bytes, given.folder), *redis(given.bytes)]
    return int(any(ratio < limit for ratio, limit in ratios))


def files(size: int, folder: Path | None) -> Iterator[tuple[float, float]]:
    """The file store against the disk."""
    pages = [memoryview(bytearray(os.urandom(size))) for _ in range(OBJECTS)]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        for sync in (True, False):
            word = "synced" if sync else "not synced"
            pairs = [_file_turn(Path(name), pages, sync=sync) for _ in range(TURNS + WARM)]
            yield _tell(f"file: put, {word}", [pair[0] for pair in pairs], FILE_LIMIT)
            yield _tell(f"file: get, {word}", [pair[1] for pair in pairs], FILE_LIMIT)


def _file_turn(
    folder: Path, pages: Sequence[memoryview], *, sync: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Bytes a second of store and plain files, for a put and a get."""
    total = sum(map(len, pages))
    options = {"location": str(folder / "store"), "sync": sync, "min_free": 0}
    store = FileStore(options, buffers=())
    try:
        puts = (
            total / _timed(lambda: _put(store, pages)),
            total / _timed(lambda: _write_plain(folder, pages, sync=sync)),
        )
        gets = (
            total / _timed(lambda: _get(store, pages)),
            total / _timed(lambda: _read_plain(folder, pages)),
        )
    finally:
        store.close()
        shutil.rmtree(folder / "store")
        shutil.rmtree(folder / "plain")
    return puts, gets


def _write_plain(folder: Path, pages: Sequence[memoryview], *, sync: bool) -> None:
    (folder / "plain").mkdir()
    for number, page in enumerate(pages):
        fd = os.open(folder / "plain" / str(number), os.O_WRONLY | os.O_CREAT)
        assert os.write(fd, page) == len(page)
        if sync:
            os.fdatasync(fd)
        os.close(fd)


def _read_plain(folder: Path, pages: Sequence[memoryview]) -> None:
    for number, page in enumerate(pages):
        fd = os.open(folder / "plain" / str(number), os.O_RDONLY)
        assert os.readv(fd, [page]) == len(page)
        os.close(fd)


def _keys(count: int, offset: int = 0) -> list[str]:
    return [f"speed/{number + offset:064x}_full_0_s0of1_p0of1" for number in range(count)]


def _put(store: Store, pages: Sequence[memoryview], offset: int = 0) -> None:
    keys = _keys(len(pages), offset)
    for start in range(0, len(pages), BATCH):
        part = slice(start, start + BATCH)
        assert all(store.batch_put_from(keys[part], pages[part]).success)


def _get(store: Store, pages: Sequence[memoryview], offset: int = 0) -> None:
    keys = _keys(len(pages), offset)
    for start in range(0, len(pages), BATCH):
        part = slice(start, start + BATCH)
        assert all(store.batch_get_into(keys[part], pages[part]).success)


# --- Redis ---------------------------------------------------------------------------------------


def redis(size: int) -> Iterator[tuple[float, float]]:
    """The Redis store against redis-benchmark."""
    if shutil.which("redis-server") is None or shutil.which("redis-benchmark") is None:
        sys.stdout.write("redis: not measured, no redis-server and redis-benchmark here\n")
        return
    pages = [memoryview(bytearray(os.urandom(size))) for _ in range(OBJECTS)]
    with tempfile.TemporaryDirectory() as name, _server(name) as socket:
        for connections in (1, 4):
            turns = [
                _redis_turn(socket, pages, connections=connections) for _ in range(TURNS + WARM)
            ]
            word = f"{connections} connection{'s' * (connections > 1)}"
            for index, what in enumerate(("put", "get")):
                yield _tell(f"redis: {what}, {word}", [each[index] for each in turns], REDIS_LIMIT)


def _redis_turn(
    socket: str, pages: Sequence[memoryview], *, connections: int
) -> list[tuple[float, float]]:
    """Bytes a second of store and redis-benchmark, for a put and a get."""
    total, size = sum(map(len, pages)), len(pages[0])
    store = RedisStore({"location": socket, "timeout": 60}, buffers=())
    share = len(pages) // connections
    parts = [(pages[start : start + share], start) for start in range(0, len(pages), share)]
    found: list[tuple[float, float]] = []
    with ThreadPoolExecutor(connections) as pool:
        for act, test in ((_put, "set"), (_get, "get")):
            ours = total / _timed(
                lambda act=act: list(pool.map(lambda part: act(store, *part), parts))  # type: ignore[misc]  # called here
            )
            found.append((ours, _benchmark(socket, test, connections=connections, size=size)))
    assert store.remove_by_prefix("speed")
    store.close()
    subprocess.run(["redis-cli", "-s", socket, "flushall"], check=True, capture_output=True)
    return found


def _benchmark(socket: str, test: str, *, connections: int, size: int) -> float:
    """redis-benchmark on as many objects: it sets new keys, and gets those that are there."""
    command = ["redis-benchmark", "-s", socket, "-d", str(size), "-n", str(OBJECTS), "--csv"]
    keys = OBJECTS if test == "get" else 10**9
    if test == "get":
        connection = Connection(parse_server(socket))
        connection.open()
        for number in range(OBJECTS):
            connection.ask([b"SET", b"key:%012d" % number, bytes(size)])
        connection.close()
    command += ["-c", str(connections), "-t", test, "-r", str(keys)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row = next(csv.DictReader(done.stdout.splitlines()))
    return float(row["rps"]) * size


@contextmanager
def _server(folder: str) -> Iterator[str]:
    path = f"{folder}/s"
    command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not Path(path).exists():
            time.sleep(0.05)
        try:
            yield path
        finally:
            process.terminate()


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _tell(what: str, pairs: Sequence[tuple[float, float]], limit: float) -> tuple[float, float]:
    pairs = pairs[WARM:]
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    ours, theirs = (statistics.median(each) / 1e6 for each in zip(*pairs, strict=True))
    mark = "" if ratio >= limit else "   BELOW"
    sys.stdout.write(
        f"{what:32} {ratio:5.2f} of {theirs:7,.0f} MB/s ({ours:,.0f}); limit {limit}{mark}\n"
    )
    return ratio, limit


if __name__ == "__main__":
    raise SystemExit(main())
