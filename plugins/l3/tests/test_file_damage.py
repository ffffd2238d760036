# SPDX-License-Identifier: MIT
"""The file store among other processes, on full disks, and with damaged files."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tokenspeed_l3.frames import head_of
from tokenspeed_l3.store_contract import blank, get, names, page_of, put
from tokenspeed_l3.stores.directory import PRIVATE, Directory
from tokenspeed_l3.stores.file import FileStore

WAIT_S = 60.0

# Puts objects of a namespace for ever, from the page of their key.
WRITER = """
    import itertools, sys
    from tokenspeed_l3.store_contract import names, page_of
    from tokenspeed_l3.stores.file import FileStore
    store = FileStore({"location": sys.argv[1], "min_free": 0}, buffers=())
    keys = names("killed", 60)
    pages = [page_of(key, 300_000) for key in keys]
    print("ready", flush=True)
    for turn in itertools.count():
        store.batch_put_from(keys, pages)
        store.remove_by_prefix("killed/")
"""


def open_store(root: Path, **options: object) -> FileStore:
    """A store of a directory that may be filled to the last byte."""
    given = {"location": str(root), "min_free": 0, "sync": False} | options
    return FileStore(given, buffers=())


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until it holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def files(root: Path) -> list[Path]:
    """The objects' files."""
    return [
        Path(path, name)
        for path, _, found in os.walk(root)
        for name in found
        if PRIVATE not in Path(path).parts
    ]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=False)


# --- limits ------------------------------------------------------------------------------------


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    """Above its limit a store drops what was neither put nor read for longest."""
    store = open_store(tmp_path, max_size="1MiB")
    keys, size, old = names("lru", 24), 38_000, time.time() - 1000  # ten blocks each
    for number, key in enumerate(keys):
        assert all(put(store, [key], size=size).success)
        path = Directory(str(tmp_path)).path(key)
        os.utime(path, (old + number, old + number))
    assert get(store, keys[0], size=size)[0]
    for key in names("more", 4):
        put(store, [key], size=size)
    wait_for(lambda: store.counts()["evicted"] >= 4)  # a close would stop it in between
    store.close()
    left = open_store(tmp_path, max_size="1MiB").batch_exists(keys)
    assert left[0], "it was read last"
    assert not left[1]
    assert list(left[1:]) == sorted(left[1:]), "the older ones went first"


def test_a_limit_is_never_passed(tmp_path: Path) -> None:
    """Stores that share a directory keep to one limit together, and go on storing."""
    stores = [open_store(tmp_path, max_size="2MiB") for _ in range(3)]

    def fill(number: int) -> int:
        stored = 0
        for key in names(f"n{number}", 300):
            stored += sum(put(stores[number], [key], size=30_000).success)
        return stored

    largest, done = 0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.wait(0.002):
            largest = max(largest, sum(_size(each) for each in files(tmp_path)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with ThreadPoolExecutor() as pool:
        stored = sum(pool.map(fill, range(3)))
    done.set()
    watcher.join()
    for store in stores:
        store.close()
    assert largest <= 2 << 20
    assert stored > 70, "more than fit at once"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_full_disk_misses_and_recovers(small_disk: Path) -> None:
    """L3-18: a disk that others filled refuses objects without an error, and takes them again when
    space returns; what is read meanwhile is whole."""
    store = open_store(small_disk / "store")
    keys, size = names("full", 40), 100_000
    assert all(put(store, keys[:10], size=size).success)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    assert not any(put(store, keys[10:], size=size).success)
    assert store.counts()["no_space"] == 30
    for key in keys:
        data, failed = get(store, key, size=size)
        assert not failed
        assert data is None or data == bytes(page_of(key, size))
    filler.unlink()
    wait_for(lambda: all(put(store, keys[10:], size=size).success))
    assert all(get(store, key, size=size)[0] for key in keys[10:])
    store.close()
    assert not list((small_disk / "store" / PRIVATE / "tmp").iterdir())


def test_a_full_disk_of_its_own_turns_over(small_disk: Path) -> None:
    """Where the disk is smaller than the limit, the store drops its oldest for the new."""
    store = open_store(small_disk / "store", max_size="1GiB")
    stored = 0
    for key in names("turn", 200):
        wait_for(lambda key=key: all(put(store, [key], size=200_000).success))  # type: ignore[misc]  # called here
        stored += 1
    assert stored == 200
    store.close()


def test_space_can_be_kept_free(tmp_path: Path) -> None:
    """With less than `min_free` on the disk nothing is stored."""
    store = open_store(tmp_path, min_free=1 << 60)
    assert not any(put(store, names("none", 3), size=10).success)
    assert store.counts()["no_space"] == 3
    store.close()


# --- interruptions -------------------------------------------------------------------------------


def test_a_killed_writer_leaves_nothing_half(tmp_path: Path) -> None:
    """L3-18: after SIGKILL in the middle of puts every object is whole or missing, and what the
    dead left is deleted by the next."""
    size, keys = 300_000, names("killed", 60)
    for turn in range(2):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(random.Random(turn).uniform(0.02, 0.2))
            process.send_signal(signal.SIGKILL)
        store = open_store(tmp_path)
        result = [get(store, key, size=size) for key in keys]
        assert not any(failed for _, failed in result)
        assert all(
            data in {None, bytes(page_of(key, size))}
            for key, (data, _) in zip(keys, result, strict=True)
        )
        drafts = tmp_path / PRIVATE / "tmp"
        put(store, names("next", 1), size=size)  # one that only reads cleans nothing
        wait_for(lambda drafts=drafts: len(list(drafts.iterdir())) <= 2)  # type: ignore[misc]  # called here
        store.close()
        assert not list(drafts.iterdir())


def test_a_slow_writer_is_seen_whole_or_not(tmp_path: Path) -> None:
    """L3-06: while a file grows byte by byte its reader misses or fails, until it is whole."""
    store, (key,) = open_store(tmp_path), names("slow", 1)
    put(store, [key], size=64)
    path = Path(Directory(str(tmp_path)).path(key))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.parent.mkdir(parents=True, exist_ok=True)  # it may be deleted while it is empty
        path.write_bytes(whole[:length])
        assert get(store, key, size=64)[0] is None, length
    put(store, [key], size=64)
    assert get(store, key, size=64) == (bytes(page_of(key, 64)), False)
    store.close()


def test_files_may_vanish_under_load(tmp_path: Path) -> None:
    """L3-07: files and directories that are deleted under load are misses, never errors."""
    stores, done = [open_store(tmp_path) for _ in range(2)], threading.Event()
    keys, size = names("vanish", 60), 5000

    def delete() -> None:
        chance = random.Random(3)
        while not done.wait(0.001):
            for path in chance.sample(
                found := sorted(tmp_path.glob("vanish/*/*")), len(found) // 2
            ):
                shutil.rmtree(path, ignore_errors=True)
            if chance.random() < 0.1:
                stores[0].remove_by_prefix("vanish/")

    def use(store: FileStore) -> None:
        for _ in range(25):
            assert all(put(store, keys, size=size).success)
            got = {key: get(store, key, size=size) for key in keys}
            assert {data in {None, bytes(page_of(key, size))} for key, (data, _) in got.items()}
            assert not any(failed for _, failed in got.values())

    deleter = threading.Thread(target=delete, daemon=True)
    deleter.start()
    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(use, store) for store in stores * 2]:
            each.result()
    done.set()
    deleter.join()
    for store in stores:
        store.close()


def test_thousands_of_damaged_objects(tmp_path: Path) -> None:
    """Of thousands of objects, most of them damaged, exactly the whole ones are handed out.

    `L3_DAMAGED=10000` makes it that many.
    """
    store, chance, size = open_store(tmp_path), random.Random(5), 256
    keys, whole = names("many", int(os.environ.get("L3_DAMAGED", "1000"))), {}
    put(store, keys, size=size)
    directory = Directory(str(tmp_path))
    for number, key in enumerate(keys):
        path = Path(directory.path(key))
        data = path.read_bytes()
        match number % 5:
            case 0:
                whole[key] = True
                continue
            case 1:
                place = chance.randrange(len(data))
                path.write_bytes(
                    data[:place]
                    + bytes([data[place] ^ (1 << chance.randrange(8))])
                    + data[place + 1 :]
                )
            case 2:
                os.truncate(path, chance.randrange(len(data)))
            case 3:
                path.write_bytes(Path(directory.path(keys[number - 3])).read_bytes())
            case 4:
                other = f"other-model/{key.partition('/')[2]}"
                path.write_bytes(head_of(other, page_of(key, size)) + page_of(key, size))
    pages = [blank(size) for _ in keys]
    result = store.batch_get_into(keys, pages)
    assert [key for key, got in zip(keys, result.success, strict=True) if got] == list(whole)
    assert list(result.failed) == [not got for got in result.success]
    assert all(
        page == page_of(key, size) for key, page in zip(keys, pages, strict=True) if key in whole
    )
    assert not any(
        each for each, got in zip(store.batch_exists(keys), result.success, strict=True) if not got
    )
    store.close()
