# SPDX-License-Identifier: MIT
"""What every store must do, as a test class: inherit `StoreContract` and give it a `bench`.

```python
class TestMine(StoreContract):
    @pytest.fixture
    def bench(self) -> MyBench: ...
```
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from tokenspeed_l3.store import BrowsableStore, IoResult, Store, StoreError

SIZES = (1, 7, 4096, 4097, 100_000)
HOSTILE = (
    "../../outside",
    "/etc/outside",
    "a/../../outside",
    "./a/.",
    "a//b",
    "plain",
    "",
    "/",
    "-rf/*",
    "UPPER/Case",
    "upper/case",
    "~/home",
    ".tokenspeed-l3/format",
    "lost+found/x",
    "ns/new\nline\0nul",
    "ns/ünïcode✓",
    "ns/" + "long" * 500,
    "long" * 500 + "/x",
)


class Bench(Protocol):
    """Where stores are opened, with access to what they keep."""

    def open(self) -> Store:
        """Another store of the same objects."""
        ...

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Damage the bytes kept for an object."""
        ...

    def swap(self, first: str, second: str) -> None:
        """Exchange the bytes kept for two objects."""
        ...


def page_of(key: str, size: int) -> memoryview:
    """A page whose bytes are a matter of its key."""
    return memoryview(bytearray(random.Random(key).randbytes(size)))


def blank(size: int) -> memoryview:
    """A page to read into."""
    return memoryview(bytearray(size))


def get(store: Store, key: str, *, size: int) -> tuple[bytes | None, bool]:
    """An object, or none, and whether it failed."""
    page = blank(size)
    result = store.batch_get_into([key], [page])
    return bytes(page) if result.success[0] else None, any(result.failed)


def put(store: Store, keys: Sequence[str], *, size: int) -> IoResult:
    """Store `page_of` for each key."""
    return store.batch_put_from(keys, [page_of(key, size) for key in keys])


def names(namespace: str, count: int) -> list[str]:
    """So many keys of a namespace."""
    return [f"{namespace}/{number:064x}_full_0_s0of1_p0of1" for number in range(count)]


class StoreContract:
    """The facts, a test each."""

    # How many objects are damaged in each way.
    damages = 25
    # Stores that keep what they are given in this process cannot find damage in it.
    finds_damage = True

    def test_what_was_put_is_got(self, bench: Bench) -> None:
        """A page that was put is read back equal, whatever its size, and exists."""
        store = bench.open()
        keys = names("round-trip", len(SIZES))
        pages = [page_of(key, size) for key, size in zip(keys, SIZES, strict=True)]
        assert list(store.batch_put_from(keys, pages).success) == [True] * len(keys)
        found = [blank(size) for size in SIZES]
        result = store.batch_get_into(keys, found)
        assert (list(result.success), any(result.failed)) == ([True] * len(keys), False)
        assert found == pages
        assert list(store.batch_exists(keys)) == [True] * len(keys)
        store.close()

    def test_what_was_not_put_is_missed(self, bench: Bench) -> None:
        """A key without an object is a miss and no failure; its neighbours in a batch are got."""
        store = bench.open()
        there, missing = names("misses", 2)
        put(store, [there], size=100)
        assert list(store.batch_exists([missing, there])) == [False, True]
        result = store.batch_get_into([missing, there], [blank(100), blank(100)])
        assert (list(result.success), any(result.failed)) == ([False, True], False)
        store.close()

    def test_nothing_is_asked(self, bench: Bench) -> None:
        """An empty batch has an empty result."""
        store = bench.open()
        assert list(store.batch_exists([])) == []
        assert list(store.batch_get_into([], []).success) == []
        assert list(store.batch_put_from([], []).success) == []
        store.close()

    def test_another_length_is_no_success(self, bench: Bench) -> None:
        """An object of another length than its page is failed."""
        store = bench.open()
        for key, size in zip(names("lengths", 3), (99, 101, 0), strict=True):
            put(store, [key], size=100)
            assert get(store, key, size=size) == (None, True), size
        store.close()

    def test_an_object_may_be_put_again(self, bench: Bench) -> None:
        """A put of an object that is there succeeds and leaves it whole."""
        store = bench.open()
        keys = names("again", 3)
        for _ in range(2):
            assert list(put(store, keys, size=500).success) == [True] * 3
        assert get(store, keys[1], size=500) == (bytes(page_of(keys[1], 500)), False)
        store.close()

    def test_two_put_the_same(self, bench: Bench) -> None:
        """Of two that put the same objects at once both succeed, and a reader sees whole ones."""
        keys, size = names("both", 40), 20_000
        one, other = bench.open(), bench.open()
        with ThreadPoolExecutor() as pool:
            puts = [pool.submit(put, each, keys, size=size) for each in (one, other)]
            seen = [get(one, key, size=size) for key in keys * 3]
            assert all(all(each.result().success) for each in puts)
        wrong = [key for key, (data, _) in zip(keys * 3, seen, strict=True) if _is_wrong(key, data)]
        assert not wrong
        assert not any(failed for _, failed in seen)
        assert all(get(other, key, size=size)[0] for key in keys)
        one.close()
        other.close()

    def test_a_removed_namespace_is_gone(self, bench: Bench) -> None:
        """After its removal nothing of a namespace is found, in any store; others stay."""
        one, other = bench.open(), bench.open()
        gone, stays = names("ns-1", 30), names("ns-10", 2) + names("ns", 2)
        put(one, gone + stays, size=300)
        assert all(other.batch_exists(gone + stays))
        assert one.remove_by_prefix("ns-1/")
        for store in (one, other):
            assert not any(store.batch_exists(gone))
            assert not any(store.batch_get_into(gone, [blank(300) for _ in gone]).success)
            assert all(store.batch_get_into(stays, [blank(300) for _ in stays]).success)
        assert one.remove_by_prefix("ns-1")
        assert all(put(other, gone, size=300).success)
        assert all(one.batch_exists(gone))
        one.close()
        other.close()

    def test_an_unknown_namespace_is_gone(self, bench: Bench) -> None:
        """A namespace that never was is removed at once."""
        store = bench.open()
        assert store.remove_by_prefix("never-was/")
        store.close()

    def test_objects_outlive_a_store(self, bench: Bench) -> None:
        """A store that is opened later finds what another left."""
        keys = names("later", 5)
        first = bench.open()
        put(first, keys, size=64)
        first.close()
        second = bench.open()
        assert all(get(second, key, size=64)[0] == bytes(page_of(key, 64)) for key in keys)
        second.close()

    def test_a_closed_store_answers_nothing(self, bench: Bench) -> None:
        """Closing twice does nothing, and a call afterwards raises StoreError."""
        store = bench.open()
        store.close()
        store.close()
        for call in (lambda: store.batch_exists(["a/b"]), lambda: put(store, ["a/b"], size=1)):
            with suppress(StoreError):
                call()
                raise AssertionError("a closed store answered")

    def test_closing_waits_for_calls(self, bench: Bench) -> None:
        """Once `close` returned, no call that ran writes to its pages."""
        store = bench.open()
        keys, size = names("closing", 20), 50_000
        put(store, keys, size=size)
        pages, started = [blank(size) for _ in keys], threading.Event()

        def read() -> None:
            with suppress(StoreError):
                while True:
                    store.batch_get_into(keys, pages)
                    started.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        assert started.wait(60)
        store.close()
        for page in pages:
            page[:] = bytes(size)
        thread.join()
        assert not any(any(page) for page in pages)

    def test_any_key_is_one_object(self, bench: Bench) -> None:
        """Keys of any form are kept apart and read back."""
        store = bench.open()
        assert all(put(store, HOSTILE, size=50).success)
        for key in HOSTILE:
            assert get(store, key, size=50) == (bytes(page_of(key, 50)), False), key
        store.close()

    def test_damage_is_found(self, bench: Bench) -> None:
        """An object that was cut, changed, lengthened or emptied is failed, and can be put anew."""
        if not self.finds_damage:
            return
        store, chance, size = bench.open(), random.Random(1), 600
        for number, (name, damage) in enumerate(DAMAGES.items()):
            keys = names(f"damage-{number}", self.damages)
            put(store, keys, size=size)
            for key in keys:
                bench.change(key, lambda data, damage=damage: damage(data, chance))  # type: ignore[misc]  # bound in the loop
            result = store.batch_get_into(keys, [blank(size) for _ in keys])
            assert not any(result.success), name
            assert all(result.failed), name
            assert all(put(store, keys, size=size).success), name
            assert not any(get(store, key, size=size)[1] for key in keys), name
        store.close()

    def test_swapped_objects_are_found(self, bench: Bench) -> None:
        """Objects that stand at each other's keys are failed, in one namespace and across two."""
        if not self.finds_damage:
            return
        store, size = bench.open(), 600
        firsts, seconds = names("v1", self.damages), names("v2", self.damages)
        put(store, firsts + seconds, size=size)
        for first, second in zip(firsts, seconds, strict=True):
            bench.swap(first, second)
        result = store.batch_get_into(firsts + seconds, [blank(size)] * len(firsts + seconds))
        assert not any(result.success)
        assert all(result.failed)
        store.close()

    def test_the_contents_can_be_browsed(self, bench: Bench) -> None:
        """Where objects can be listed, the list is what was put, and each can be checked and
        removed."""
        store = bench.open()
        if not isinstance(store, BrowsableStore):
            return
        keys = [*names("browse", 4), "Odd Key/with spaces"]
        put(store, keys, size=70)
        assert {each.key: each.size for each in store.objects()} == dict.fromkeys(keys, 70)
        assert [store.check(key) for key in keys] == [None] * 5
        assert (store.remove(keys[0]), store.remove(keys[0])) == (True, False)
        assert {each.key for each in store.objects()} == set(keys[1:])
        if self.finds_damage:
            bench.change(keys[1], lambda data: data[:-1])
            bench.change(keys[2], lambda data: data[:-1] + bytes([data[-1] ^ 1]))
            bench.swap(keys[3], keys[4])
            assert all(store.check(key) for key in keys[1:])
            bench.change(keys[1], lambda data: data[:5])
            assert {each.key for each in store.objects()} >= set(keys[1:4])
            assert store.check(keys[1])
        store.close()


def _is_wrong(key: str, data: bytes | None) -> bool:
    return data is not None and data != page_of(key, len(data))


def _flip(data: bytes, chance: random.Random) -> bytes:
    place, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _blank_part(data: bytes, chance: random.Random) -> bytes:
    """As a file system leaves a block it did not write in time; the page itself has no zeros."""
    place = chance.randrange(len(data) - 64)
    return data[:place] + bytes(64) + data[place + 64 :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": _flip,
    "cut": _cut,
    "empty": lambda data, chance: b"",
    "longer": lambda data, chance: data + chance.randbytes(1 + chance.randrange(50)),
    "zeroed": lambda data, chance: bytes(len(data)),
    "part zeroed": _blank_part,
    "random": lambda data, chance: chance.randbytes(len(data)),
    "another version": lambda data, chance: data[:7] + b"\x02" + data[8:],
}
